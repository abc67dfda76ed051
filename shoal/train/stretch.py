"""The global batches of one act. A stretch may be of thousands, of which a worker does a few: each is made when it is
asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from shoal.core.cursor import Batches, Cursor, GlobalBatch

Planned = tuple[GlobalBatch, tuple[float, ...]]  # with its learning rates


class Stretch(Sequence[Planned]):
    """`count` batches from `start` on, all of one epoch."""

    def __init__(
        self, batches: Batches, rates: Callable[[Cursor], tuple[float, ...]], start: Cursor, count: int
    ) -> None:
        assert 1 <= count <= batches.per_epoch - start.batch, f"{count} batches from {start} are not of one epoch"
        self._batches, self._rates, self._start, self._count = batches, rates, start, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Planned: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Planned, ...]: ...
    def __getitem__(self, index: int | slice) -> Planned | tuple[Planned, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(self._count)))
        if not -self._count <= index < self._count:
            raise IndexError(f"there are {self._count} batches, and no batch {index}")
        cursor = self._batches.ahead(self._start, index % self._count)
        return self._batches.at(cursor), self._rates(cursor)
