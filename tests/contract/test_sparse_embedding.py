"""A table of an embedding under parameter servers: the mathematics of plain PyTorch, and only touched rows travel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from served import Reach, servers

from shoal.testing.checks import (
    PARAMETERS,
    check_against_reference,
    check_coverage,
    check_evaluation,
    distance,
)
from shoal.testing.contract import short
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.reference import reference
from shoal.testing.trial import Trained, Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks]

PLAN = short("table", optimizer="sgd")
TABLE_BYTES = sum(p.nbytes for p in PLAN.what.model().parameters())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with servers(tmp_path_factory.mktemp("servers")) as directory:
        yield directory


@pytest.fixture
def trial(ranks: RankHarness, tmp_path: Path, fleet: Path) -> Trial:
    return Trial(ranks, "parameter-server", tmp_path, {}, True, Reach(fleet))


def check_traffic(trained: Trained) -> None:
    """It is sent whole once, when training begins; at each of 15 steps a few hundred of 20,000 rows."""
    assert TABLE_BYTES < trained.summary["bytes_sent"] < 2 * TABLE_BYTES


def test_synchronous(trial: Trial) -> None:
    check_traffic(check_against_reference(trial, 2, PLAN))


@pytest.mark.parametrize("sums", ["float32", "float64"])
def test_rows_are_added_up_within_teams(trial: Trial, sums: str) -> None:
    teams = trial.with_strategy("hybrid", **{"hybrid.outer": "parameter-server", "hybrid.team": 2, "sums": sums})
    check_traffic(check_against_reference(teams, 3, PLAN))


@pytest.mark.parametrize("how", [{}, {"hybrid.outer": "async", "hybrid.team": 2}], ids=["alone", "teams"])
def test_asynchronous(trial: Trial, how: dict[str, Any]) -> None:
    """With one worker, or with one team, that is ordinary training."""
    one = trial.with_strategy("hybrid" if how else "async", **how)
    trained = one.run(2 if how else 1, PLAN)
    check_coverage(trained, PLAN)
    check_evaluation(trained, PLAN)
    assert distance(trained.parameters, reference(PLAN).parameters) <= PARAMETERS
    check_traffic(trained)


def test_asynchronous_workers_learn_it_together(trial: Trial) -> None:
    plan = Plan("table", optimizer="sgd", epochs=4, samples=600)
    trained = trial.with_strategy("async").run(3, plan)
    check_coverage(trained, plan)
    assert trained.losses[-1] < trained.losses[0]
    untouched = plan.what.model().state_dict()["table.weight"][5000:]
    assert torch.equal(trained.parameters["table.weight"][5000:], untouched), "rows that nobody touched have changed"
