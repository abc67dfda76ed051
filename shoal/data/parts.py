"""Slices of sources, and several in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.config import LoaderSettings
from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError
from shoal.core.order import Indices, Order
from shoal.data.files.source import PieceSource
from shoal.data.shards import ShardSource
from shoal.data.source import Batch, Source


def part_of(source: Source, rows: range) -> Source:
    """Samples ``[rows.start, rows.stop)`` of a source, as one."""
    if rows == range(len(source)):
        return source
    if isinstance(source, PieceSource | ShardSource):
        return source.part(rows.start, rows.stop)
    return SlicedSource(source, rows.start, rows.stop)


def joined(sources: Sequence[Source]) -> Source:
    """The samples of all of them, one after the other."""
    first, *others = sources
    for number, other in enumerate(others):
        both = _as_one(first, other)
        if both is None:
            return JoinedSource([first, *others[number:]])
        first = both
    return first


def _as_one(first: Source, second: Source) -> Source | None:
    """Both, read together, where their kind can do that."""
    if isinstance(first, PieceSource) and isinstance(second, PieceSource):
        return first.joined(second)
    if isinstance(first, ShardSource) and isinstance(second, ShardSource) and first.can_join(second):
        return first.joined(second)
    return None


class SlicedSource(Source):
    """Samples ``[start, stop)`` of another, in the order in which that one would visit them."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        assert 0 <= start < stop <= len(source)
        self._source, self._start, self._stop = source, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        return self._source.fetch(indices + self._start, epoch, seed)

    @property
    def column_names(self) -> tuple[str, ...] | None:
        return self._source.column_names

    @property
    def grouped(self) -> str | None:
        return self._source.grouped

    @property
    def digest(self) -> str | None:
        return None if self._source.digest is None else f"{self._source.digest}[{self._start}:{self._stop}]"

    @property
    def mark(self) -> str:
        return f"{self._source.mark}[{self._start}:{self._stop}]"

    def complaints(self) -> list[str]:
        return self._source.complaints()

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read + super().bytes_read

    def under(self, settings: LoaderSettings) -> SlicedSource:
        return SlicedSource(self._source.under(settings), self._start, self._stop)

    def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
        inner = self._source.order(seed, shuffle)
        return _SlicedOrder(inner, len(self._source), self._start, self._stop)


class _SlicedOrder(Order):
    """What is within ``[start, stop)`` of another order, which is of `samples`."""

    def __init__(self, inner: Order, samples: int, start: int, stop: int) -> None:
        self._inner, self._samples, self._start, self._stop = inner, samples, start, stop
        self._made: tuple[int, Indices] | None = None  # of the last epoch that was asked for

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        if self._made is None or self._made[0] != epoch:
            whole = self._inner.at(epoch, 0, self._samples)
            chosen = whole[(whole >= self._start) & (whole < self._stop)] - self._start
            chosen.setflags(write=False)
            self._made = epoch, chosen
        return self._made[1][start:stop]


class JoinedSource(Source):
    """The samples of several sources. Batches of both are put together: they must be alike."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._starts = np.cumsum([0, *map(len, sources)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def column_names(self) -> tuple[str, ...] | None:
        return self._sources[0].column_names

    @property
    def grouped(self) -> str | None:
        return next((one.grouped for one in self._sources if one.grouped is not None), None)

    @property
    def digest(self) -> str | None:
        found = [one.digest for one in self._sources]
        return None if None in found else "+".join(str(one) for one in found)

    @property
    def mark(self) -> str:
        return "+".join(one.mark for one in self._sources)

    def complaints(self) -> list[str]:
        return [words for one in self._sources for words in one.complaints()]

    @property
    def bytes_read(self) -> int:
        return sum(one.bytes_read for one in self._sources) + super().bytes_read

    def under(self, settings: LoaderSettings) -> JoinedSource:
        return JoinedSource([one.under(settings) for one in self._sources])

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        of = np.searchsorted(self._starts, indices, side="right") - 1
        batches, slots = [], []
        for number in np.unique(of).tolist():
            mine = np.flatnonzero(of == number)
            batches.append(self._sources[number].fetch(indices[mine] - self._starts[number], epoch, seed))
            slots.append(mine)
        if len(batches) == 1:
            return batches[0]
        return _merged(batches, np.argsort(np.concatenate(slots), kind="stable"))


def _merged(batches: Sequence[Any], order: Indices) -> Any:
    """Batches one after the other, their samples then in this order."""
    first = batches[0]
    if isinstance(first, Tensor):
        shapes = {(tuple(batch.shape[1:]), batch.dtype) for batch in batches}
        if len(shapes) > 1:
            (one, kind), (other, other_kind) = list(shapes)[:2]
            raise ConfigError(
                f"samples of shape {list(one)} ({kind}) and {list(other)} ({other_kind}) cannot be in one batch: only "
                "splits with samples of the same shape and type can be added"
            )
        return torch.cat(list(batches))[torch.from_numpy(order)]
    if isinstance(first, Mapping):
        return {key: _merged([batch[key] for batch in batches], order) for key in first}
    if isinstance(first, tuple):
        return tuple(_merged(parts, order) for parts in zip(*batches, strict=True))
    flat = [value for batch in batches for value in batch]
    return [flat[place] for place in order.tolist()]
