"""A strategy whose workers each hold a part of the model: its checkpoint is whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shoal.checkpoint.catalog import Catalog
from shoal.core.errors import NonFiniteState
from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness

pytestmark = pytest.mark.ranks


def save_rows(session: Session, directory: str, spoilt: int | None) -> str:
    """Each worker contributes its rows of one matrix, as a strategy would; `spoilt` is the rank that has a NaN."""
    from shoal.core.config import resolve
    from shoal.core.cursor import Cursor
    from shoal.core.state import Piece, ShardedState
    from shoal.train.ledger import Ledger
    from shoal.train.place import Place
    from shoal.train.record import Account
    from shoal.train.saving import CoverageRecord, Saver

    rank, size = session.world.rank, session.world.size
    rows = torch.full((2, 3), float(rank))
    if rank == spoilt:
        rows[1, 1] = float("nan")
    strategy = SimpleNamespace(
        state=lambda replica: ShardedState({"model.matrix": Piece(rows, (2 * size, 3), (2 * rank, 0))}, {"n": size})
    )
    config = resolve(("a test", {"global_batch": 1, "comm.backend": "shm"}))
    place = Place(session, session.attendance.enter(0), config)
    saver = Saver(Path(directory), config, None, None)
    saver.settle(place.keeps_record)
    try:
        ledger = Ledger(cursor=Cursor(step=4))
        saver.save(strategy, None, place.group, CoverageRecord(5, whole=False), Account(), ledger)
        saver.flush()
    except NonFiniteState as error:
        return error.name
    finally:
        saver.close()
        place.close()
    return "saved"


def test_every_workers_rows_are_in_it(ranks: RankHarness, tmp_path: Path) -> None:
    assert ranks.run(3, save_rows, str(tmp_path), None) == ["saved"] * 3
    found = Catalog(tmp_path).newest_valid(pytest.fail)
    assert found is not None
    whole = found.state.pieces["model.matrix"].tensor
    assert torch.equal(whole, torch.tensor([0.0, 0, 1, 1, 2, 2]).repeat(3, 1).T)


def test_a_part_that_is_not_finite_is_refused_by_all(ranks: RankHarness, tmp_path: Path) -> None:
    assert ranks.run(3, save_rows, str(tmp_path), 2) == ["model.matrix"] * 3
    assert not list(tmp_path.glob("step-*"))
