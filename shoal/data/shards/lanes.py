"""Law 1 for data that lies in blocks: a permutation of the samples, a pure function of seed, epoch, manifest and plan.

The blocks are permuted and laid out in a line, and the line is cut into lanes, each as long as the samples that all
batches of the epoch take from it. A lane is cut into windows of whole blocks, but for those on its two borders, and
samples are permuted within a window. Every second lane runs backwards, so that two lanes need the block that they share
at the same time. Any position can be looked up without looking at those before it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.core.order import Indices, Mixing, Order
from shoal.core.seeds import blocks_seed, window_seed
from shoal.data.shards.blocks import Blocks
from shoal.data.shards.plan import LanePlan
from shoal.data.shards.quality import mixing

_PAGE = 1 << 16  # about so many positions are looked up at once
_PAGES = 4
T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """Rows ``[start, stop)`` of a block."""

    block: int
    start: int
    stop: int


@dataclass(frozen=True)
class Window:
    """Samples ``[start, stop)`` of a lane in an epoch, and what they are: the rows of `pieces`, one after the other, in
    the order that `LaneOrder.shuffled` gives."""

    epoch: int
    lane: int
    number: int
    start: int
    stop: int
    pieces: tuple[Piece, ...]

    @cached_property
    def key(self) -> tuple[int, int, int]:
        return self.epoch, self.lane, self.number


class LaneOrder(Order):
    """The order of samples by lanes. Without `shuffle` it is the order of the rows."""

    def __init__(self, seed: int, blocks: Blocks, plan: LanePlan, shuffle: bool = True) -> None:
        assert shuffle or plan.lanes == 1
        self.seed, self.blocks, self.plan, self.shuffle = seed, blocks, plan, shuffle
        self._ends = np.cumsum([plan.length(lane) for lane in range(plan.lanes)])
        self._dtype: npt.DTypeLike = np.int32 if plan.samples < 1 << 31 else np.int64
        self._lines = _Recent[tuple[Indices, Indices]](2)
        self._windows = _Recent[list[Window]](4 * plan.lanes)
        self._numbers = _Recent[npt.NDArray[Any]](2 * plan.lanes + 2)
        self._pages = _Recent[Indices](_PAGES)
        self._page_batches = max(1, _PAGE // plan.global_batch)

    @property
    def key(self) -> tuple[int, Blocks, LanePlan, bool]:
        """Orders with the same key are the same."""
        return self.seed, self.blocks, self.plan, self.shuffle

    @property
    def mixing(self) -> Mixing | None:
        return mixing(self.blocks, self.plan) if self.shuffle else None

    # ---- positions

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        size = self._page_batches * self.plan.global_batch
        parts = []
        for number in range(start // size, -(-stop // size)):
            base, page = number * size, self._page(epoch, number)
            parts.append(page[max(start - base, 0) : stop - base])
        return parts[0] if len(parts) == 1 else _sealed(np.concatenate([np.empty(0, np.int64), *parts]))

    def split(self, start: int, stop: int, parts: int) -> list[tuple[int, int]]:
        plan = self.plan
        first = start - start % plan.global_batch
        if plan.lanes < parts or stop > first + plan.global_batch:
            return []
        lanes = [plan.lanes * part // parts for part in range(parts + 1)]
        cuts = [min(max(first + plan.borders[lane], start), stop) for lane in lanes]
        return list(itertools.pairwise([start, *cuts[1:-1], stop]))

    def _page(self, epoch: int, number: int) -> Indices:
        return self._pages.get((epoch, number), lambda: self._make_page(epoch, number))

    def _make_page(self, epoch: int, number: int) -> Indices:
        plan = self.plan
        batch = plan.global_batch
        first = number * self._page_batches
        full = max(0, min(self._page_batches, plan.samples // batch - first))
        start, stop = first * batch, min((first + self._page_batches) * batch, plan.samples)
        page = np.empty(stop - start, np.int64)
        rows, rest = page[: full * batch].reshape(full, batch), page[full * batch :]
        for lane in range(plan.lanes):
            low, width = plan.borders[lane], plan.width(lane)
            at, tail = (first + full) * width, min(max(len(rest) - low, 0), width)
            found = self._samples(epoch, lane, first * width, at + tail)
            rows[:, low : low + width] = found[: full * width].reshape(full, width)
            rest[low : low + tail] = found[full * width :]
        return _sealed(page)

    def _samples(self, epoch: int, lane: int, start: int, stop: int) -> Indices:
        """The numbers of samples ``[start, stop)`` of a lane."""
        windows = self.windows(epoch, lane)
        parts: list[npt.NDArray[Any]] = [np.empty(0, self._dtype)]
        number = bisect_right(windows, start, key=lambda one: one.start) - 1
        while start < stop:
            window = windows[number]
            parts.append(self.numbers(window)[start - window.start : stop - window.start])
            start, number = window.stop, number + 1
        return np.concatenate(parts)

    def locate(self, positions: Indices) -> tuple[Indices, Indices]:
        """The lane of each of these positions of an epoch, and which of the lane's samples it is."""
        borders = np.asarray(self.plan.borders, dtype=np.int64)
        batch, offset = np.divmod(positions, self.plan.global_batch)
        lane = np.searchsorted(borders, offset, side="right") - 1
        return lane, batch * np.diff(borders)[lane] + offset - borders[lane]

    # ---- windows

    def windows(self, epoch: int, lane: int) -> list[Window]:
        """The windows of a lane, in order."""
        return self._windows.get((epoch, lane), lambda: self._cut(epoch, lane))

    def _line(self, epoch: int) -> tuple[Indices, Indices]:
        """The blocks in the order of the line, and where each begins on it."""

        def make() -> tuple[Indices, Indices]:
            count = len(self.blocks.rows)
            order = np.arange(count, dtype=np.int64)
            if self.shuffle:
                order = _permutation(blocks_seed(self.seed, epoch), count)
            rows = np.diff(self.blocks.starts)[order]
            return order, np.concatenate([[0], np.cumsum(rows)])

        return self._lines.get(epoch, make)

    def _cut(self, epoch: int, lane: int) -> list[Window]:
        order, borders = self._line(epoch)
        length, stop = self.plan.length(lane), int(self._ends[lane])
        start = stop - length
        if length == 0:
            return []
        first, last = np.searchsorted(borders, [start, stop - 1], side="right") - 1
        pieces = [
            Piece(int(order[at]), max(start - int(borders[at]), 0), min(stop, int(borders[at + 1])) - int(borders[at]))
            for at in range(first, last + 1)
        ]
        if lane % 2:
            pieces.reverse()
        return self._group(epoch, lane, pieces, length)

    def _group(self, epoch: int, lane: int, pieces: list[Piece], length: int) -> list[Window]:
        target = self.plan.window_rows
        # lanes begin with windows of different sizes, so that they do not all need their next one at the same time
        aim = target if length <= target else max(1, target * (lane + 1) // self.plan.lanes)
        windows: list[Window] = []
        held: list[Piece] = []
        start = rows = 0
        for piece in pieces:
            size = piece.stop - piece.start
            if held and rows + size > aim:
                windows.append(Window(epoch, lane, len(windows), start, start + rows, tuple(held)))
                start, rows, held, aim = start + rows, 0, [], target
            held.append(piece)
            rows += size
        return [*windows, Window(epoch, lane, len(windows), start, start + rows, tuple(held))]

    def shuffled(self, window: Window) -> Indices | None:
        """Which of the rows of its pieces comes at each place of a window; None: they come as they are."""
        if not self.shuffle:
            return None
        return _permutation(window_seed(self.seed, *window.key), window.stop - window.start)

    def numbers(self, window: Window) -> npt.NDArray[Any]:
        """The numbers of the samples of a window, in order."""

        def make() -> npt.NDArray[Any]:
            starts = self.blocks.starts
            parts = [np.arange(p.start, p.stop, dtype=self._dtype) + int(starts[p.block]) for p in window.pieces]
            found = np.concatenate(parts).astype(self._dtype, copy=False)
            order = self.shuffled(window)
            return found if order is None else found[order]

        return self._numbers.get(window.key, make)


class _Recent(Generic[T]):
    """What was asked for lately, so that it need not be made again. Made twice where two threads ask at once."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, OrderedDict[Hashable, T]()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        try:
            return self._kept[key]
        except KeyError:
            made = self._kept[key] = make()
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return made


def _permutation(seed: int, count: int) -> Indices:
    """As `core.order.epoch_order` makes one: of words and a sort whose results are promised to stay the same."""
    return np.argsort(np.random.Philox(key=seed).random_raw(count), kind="stable").astype(np.int64, copy=False)


def _sealed(indices: Indices) -> Indices:
    indices.setflags(write=False)
    return indices
