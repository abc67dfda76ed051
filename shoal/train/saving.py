"""Law 2 on disk: model state and the record of the samples it has seen are saved and restored together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.checkpoint.catalog import Catalog
from shoal.checkpoint.format import read
from shoal.checkpoint.shards import pack_state, unpack_state
from shoal.checkpoint.writer import Writer
from shoal.comm.group import Group
from shoal.core.config import CheckpointSettings
from shoal.core.coverage import Counts, CoverageTotals, EpochCoverage, totals
from shoal.core.cursor import Cursor
from shoal.core.errors import CheckpointError, NonFiniteState
from shoal.core.events import CheckpointSaved
from shoal.core.state import Piece, ShardedState
from shoal.launch.rundir import disk_error
from shoal.strategies.base import Strategy
from shoal.train.record import Account

_COUNTS = "coverage.counts"


class CoverageRecord:
    """How often samples shaped the model: this worker's part of the current epoch, the group's of finished ones."""

    def __init__(self, samples: int, group: Group) -> None:
        self._group = group
        self._epoch = EpochCoverage(samples)
        self._finished = CoverageTotals()

    def commit(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._epoch.commit(indices)

    def combined(self) -> Counts:
        """The group's counts of the current epoch. Collective."""
        counts = torch.from_numpy(self._epoch.counts.astype(np.int32))
        self._group.all_reduce(counts, "adding up the coverage")
        clamped: Counts = np.minimum(counts.numpy(), 255).astype(np.uint8)
        return clamped

    def finish_epoch(self) -> None:
        """Judge the epoch that has just ended. Collective."""
        counts = self.combined()
        self._finished += totals(counts, expected=len(counts))
        self._epoch.reset()

    def judge(self, committed_in_epoch: int) -> CoverageTotals:
        """The totals up to now, in the middle of an epoch or not. Collective."""
        return self._finished + totals(self.combined(), expected=committed_in_epoch)

    @property
    def finished(self) -> CoverageTotals:
        return self._finished

    def restore(self, counts: Counts, finished: CoverageTotals, first: bool) -> None:
        """Go on from a checkpoint: the first worker takes over what the whole group had computed."""
        self._finished = finished
        if len(counts) != len(self._epoch.counts):
            raise CheckpointError(
                f"the checkpoint was written for a data set of {len(counts)} samples, this one has "
                f"{len(self._epoch.counts)}: use the same data, or another --run-dir"
            )
        if first:
            self._epoch.counts[:] = counts


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on."""

    cursor: Cursor
    path: Path
    values: dict[str, float]  # of the latest evaluation
    evaluated: bool  # whether that was made of this very state


def _not_finite(state: ShardedState) -> str | None:
    """The name of a tensor of the model that holds NaN or infinity, or None."""
    for name, piece in state.pieces.items():
        tensor = piece.tensor.detach()
        # a sum shows both at the price of one reading, and is wrong only by overflow, which the second look settles
        suspicious = tensor.is_floating_point() and not math.isfinite(float(tensor.sum()))
        if suspicious and not bool(torch.isfinite(tensor).all()):
            return name
    return None


class Saver:
    """Writes checkpoints in the background (first worker) and reads the newest good one (every worker)."""

    def __init__(self, directory: Path, settings: CheckpointSettings, group: Group) -> None:
        self._directory, self._group = directory, group
        self._first = group.rank == 0
        self._writer = (
            Writer(directory, settings.keep_last, settings.keep_best, settings.monitor, settings.mode)
            if self._first
            else None
        )
        self.last_saved: Cursor | None = None
        self.last_path: str | None = None

    def save(
        self, strategy: Strategy[Any], replica: Any, cursor: Cursor, coverage: CoverageRecord, account: Account,
        values: dict[str, float], evaluated: bool,
    ) -> None:  # fmt: skip
        """Copy the state out of the step's way; it is on disk when `poll` says so. Collective.

        `values` are those of the latest evaluation. Only where that was of this very state (`evaluated`) do they say
        how good the checkpoint is, and stand where the choice of the best ones looks for them.
        """
        shards = self._gather(strategy.state(replica), cursor)
        counts = coverage.combined()
        self.last_saved = cursor
        if self._writer is None:
            return
        own = ShardedState({**shards[0].pieces, _COUNTS: Piece.whole(torch.from_numpy(counts))}, shards[0].values)
        meta = {
            **(values if evaluated else {}),
            "evaluation": values,
            "evaluated": evaluated,
            "coverage": coverage.finished.to_json(),
            "epoch_loss": account.epoch_loss,
            "epoch_weight": account.epoch_weight,
        }
        try:
            self._writer.save(f"step-{cursor.step:08d}", [own, *shards[1:]], cursor, meta)
        except OSError as error:
            raise disk_error(self._directory, error) from error

    def _gather(self, state: ShardedState, cursor: Cursor) -> list[ShardedState]:
        """The states of all workers, on the first one; most strategies have them there already. Collective."""
        mine = json.dumps([_not_finite(state), bool(state.pieces)]).encode()
        words = [json.loads(word) for word in self._group.gather_bytes(mine, "agreeing to save")]
        bad = next((name for name, _ in words if name), None)
        if bad is not None:
            raise NonFiniteState(cursor.step, bad)
        if not any(has for _, has in words[1:]):
            return [state]
        packed = self._group.gather_bytes(b"" if self._first else pack_state(state), "collecting the model")
        return [state, *(unpack_state(part) for part in packed[1:])] if self._first else [state]

    def poll(self) -> list[CheckpointSaved]:
        """What has been completed since the last call; raises what went wrong in the background."""
        if self._writer is None:
            return []
        try:
            saved = self._writer.poll()
        except OSError as error:
            raise disk_error(self._directory, error) from error
        if saved:
            self.last_path = str(saved[-1].path)
        return [CheckpointSaved(one.cursor, str(one.path), one.size_bytes, one.seconds) for one in saved]

    def flush(self, deadline_s: float = 120.0) -> list[CheckpointSaved]:
        """Wait until everything is on disk."""
        if self._writer is not None:
            try:
                self._writer.flush(deadline_s)
            except OSError as error:
                raise disk_error(self._directory, error) from error
        return self.poll()

    def resume(
        self, strategy: Strategy[Any], replica: Any, coverage: CoverageRecord, account: Account,
        warn: Callable[[str], None],
    ) -> Resumed | None:  # fmt: skip
        """Load the newest good checkpoint into the replica, the same one on every worker. Collective."""
        found = ""
        if self._first:
            catalog = Catalog(self._directory)
            catalog.clean()
            newest = catalog.newest_valid(warn)
            found = str(newest.path) if newest is not None else ""
        found = self._group.gather_bytes(found.encode(), "agreeing on a checkpoint")[0].decode()
        if not found:
            return None
        checkpoint = read(Path(found))
        pieces = dict(checkpoint.state.pieces)
        counts = pieces.pop(_COUNTS).tensor.numpy()
        strategy.load(replica, ShardedState(pieces, checkpoint.state.values))
        meta = dict(checkpoint.meta)
        coverage.restore(counts, CoverageTotals.from_json(meta["coverage"]), self._first)
        account.restore(meta["epoch_loss"], meta["epoch_weight"])
        self.last_saved, self.last_path = checkpoint.cursor, found
        return Resumed(checkpoint.cursor, Path(found), dict(meta["evaluation"]), bool(meta["evaluated"]))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
