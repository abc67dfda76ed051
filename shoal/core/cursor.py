"""Where training is, and what the next global batch is: pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.grains import Grain, cut, shares


@dataclass(frozen=True)
class Cursor:
    """Position of a synchronous run: everything before it has shaped the model, nothing after it has."""

    epoch: int = 0
    batch: int = 0  # global batches committed within the epoch
    step: int = 0  # global batches committed since the start of the run
    samples: int = 0  # samples committed since the start of the run

    def to_json(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch, "step": self.step, "samples": self.samples}

    @classmethod
    def from_json(cls, data: dict[str, int]) -> Cursor:
        """Raises `ValueError` where that is no position."""
        values = [data[name] for name in ("epoch", "batch", "step", "samples")]
        if any(type(value) is not int or value < 0 for value in values):
            raise ValueError(f"{data} is no position in a run")
        return cls(*values)


@dataclass(frozen=True)
class Batches:
    """How a data set is cut: `samples` in all, `global_batch` to a step, `grain` to a grain."""

    samples: int
    global_batch: int
    grain: int

    @property
    def per_epoch(self) -> int:
        return -(-self.samples // self.global_batch)

    def at(self, cursor: Cursor) -> GlobalBatch:
        """Return the global batch that `cursor` points to."""
        start, stop = self._span(cursor)
        return GlobalBatch(cursor, start, stop, cut(start, stop, self.grain))

    def _span(self, cursor: Cursor) -> tuple[int, int]:
        start = cursor.batch * self.global_batch
        stop = min(start + self.global_batch, self.samples)
        assert start < stop, f"{cursor} is past the end of the epoch"
        return start, stop

    def after(self, cursor: Cursor) -> Cursor:
        """Return the cursor once the batch at `cursor` is committed."""
        start, stop = self._span(cursor)
        batch, epoch = cursor.batch + 1, cursor.epoch
        if batch == self.per_epoch:
            batch, epoch = 0, epoch + 1
        return Cursor(epoch, batch, cursor.step + 1, cursor.samples + stop - start)

    def problem(self, cursor: Cursor) -> str:
        """Why no run over this data can ever be at `cursor`; empty: one can."""
        if cursor.batch >= self.per_epoch:
            return f"it is at batch {cursor.batch} of an epoch that has {self.per_epoch}"
        steps = cursor.epoch * self.per_epoch + cursor.batch
        if cursor.step != steps:
            return (
                f"it is at step {cursor.step}, but {cursor.epoch} epochs and {cursor.batch} batches are {steps} steps"
            )
        most = cursor.epoch * self.samples + cursor.batch * self.global_batch
        if cursor.samples > most:
            return f"it has seen {cursor.samples} samples, but {steps} steps have {most}"
        return ""

    def ahead(self, cursor: Cursor, count: int) -> Cursor:
        """Return the cursor once `count` batches from `cursor` on, the last of its epoch not among them, are
        committed."""
        assert 0 <= count < self.per_epoch - cursor.batch, f"{count} batches from {cursor} end the epoch"
        return Cursor(
            cursor.epoch, cursor.batch + count, cursor.step + count, cursor.samples + count * self.global_batch
        )


@dataclass(frozen=True)
class GlobalBatch:
    """One step's samples, ``[start, stop)`` of the epoch's order, cut into grains."""

    cursor: Cursor
    start: int
    stop: int
    grains: tuple[Grain, ...]

    @property
    def samples(self) -> int:
        return self.stop - self.start

    def share(self, rank: int, weights: Sequence[float]) -> tuple[Grain, ...]:
        """The grains that worker `rank` computes: a pure function of cursor, view and weights."""
        mine = shares(len(self.grains), weights)[rank]
        return self.grains[mine.start : mine.stop]
