"""Batches out of windows: many requests at a time, so that little is done for each and almost nothing for a sample."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor

from shoal.core.order import Indices
from shoal.data.request import Batch, Loaded, Request
from shoal.data.shards.collating import Collator
from shoal.data.shards.lanes import LaneOrder, Window
from shoal.data.shards.windows import Held, Windows

_AHEAD = 4  # windows of a lane that may be expected


class Assembler:
    """Answers requests out of `windows`. Used from one thread. `epochs`: the number of epochs of the run, if it is
    known; what comes after is not read."""

    def __init__(self, order: LaneOrder, windows: Windows, collate: Collator, epochs: int | None) -> None:
        self._order, self._windows, self._collate, self._epochs = order, windows, collate, epochs
        self._epoch = -1
        # of each lane that was drawn from: the latest window, how far in it, and whether it is used up
        self._latest: dict[int, tuple[Window, int, bool]] = {}

    def __call__(self, requests: Sequence[Request], stopped: Callable[[], bool]) -> list[Loaded] | None:
        """What the requests, all of one epoch, ask for; None if `stopped` meanwhile."""
        epoch, lengths = requests[0].epoch, [request.stop - request.start for request in requests]
        positions = np.concatenate([np.arange(request.start, request.stop) for request in requests])
        drawn = list(self._draw(epoch, positions))
        held = self._windows.need([window for window, _, _ in drawn], stopped)
        if held is None:
            return None
        self._go_on(epoch, drawn)
        parts = [(held[window.key], places, slots) for window, places, slots in drawn]
        indices = np.empty(len(positions), np.int64)
        for one, places, slots in parts:
            indices[slots] = one.numbers[places]
        if any(one.rows is not None for one, _, _ in parts):
            indices, parts, lengths = _without_missing(indices, parts, lengths)
        columns = self._collate([(one.values, places, slots) for one, places, slots in parts], indices)
        return list(_cut(requests, lengths, indices, columns))

    def _draw(self, epoch: int, positions: Indices) -> Iterator[tuple[Window, Indices, Indices]]:
        """For each window that is drawn from: the places in it, and the slots of the answer that they go to."""
        order = self._order
        lane, at = order.locate(positions)
        slots = np.argsort(lane, kind="stable")
        ascending = bool((np.diff(positions) > 0).all())
        borders = [0, *(np.flatnonzero(np.diff(lane[slots])) + 1).tolist(), len(slots)]
        lanes, at = lane[slots[borders[:-1]]].tolist(), at[slots]
        for number, start, stop in zip(lanes, borders, borders[1:], strict=False):
            windows, mine, places = order.windows(epoch, number), slots[start:stop], at[start:stop]
            ends = (places[0], places[-1]) if ascending else (places.min(), places.max())
            low, high = int(ends[0]), int(ends[1])
            for window in windows[bisect_right(windows, low, key=_start) - 1 :]:
                if window.start > high:
                    break
                if window.start <= low and window.stop > high:
                    yield window, places - window.start, mine
                else:
                    inside = (places >= window.start) & (places < window.stop)
                    yield window, places[inside] - window.start, mine[inside]

    def _go_on(self, epoch: int, drawn: Sequence[tuple[Window, Indices, Indices]]) -> None:
        """Let go of what has been used up, and expect what comes next in the lanes that were drawn from. There is
        nothing new to be said as long as they are drawn from the same windows."""
        if epoch != self._epoch:
            self._epoch, self._latest = epoch, {}
        before = {lane: (window.key, used_up) for lane, (window, _, used_up) in self._latest.items()}
        for window, places, _ in drawn:
            if len(places):
                place = int(places[-1])
                self._latest[window.lane] = window, place, place == window.stop - window.start - 1
        if before != {lane: (window.key, used_up) for lane, (window, _, used_up) in self._latest.items()}:
            share = len(self._latest) / self._order.plan.lanes
            self._windows.expect(self._coming(), self._is_done, lambda window: window.lane not in self._latest, share)

    def _coming(self) -> list[Window]:
        """The windows that will be needed, the most urgent first: by how many batches their lanes have left."""
        order, plan, epoch = self._order, self._order.plan, self._epoch
        coming: list[tuple[float, Window]] = []
        for lane, (window, place, _) in self._latest.items():
            left = (window.stop - window.start - place) / max(1, plan.width(lane))
            following = order.windows(epoch, lane)[window.number + 1 :][:_AHEAD]
            if len(following) < _AHEAD and (self._epochs or 0) > epoch + 1:
                following = [*following, *order.windows(epoch + 1, lane)[: _AHEAD - len(following)]]
            for one in following:
                coming.append((left, one))
                left += (one.stop - one.start) / max(1, plan.width(lane))
        return [one for _, one in sorted(coming, key=lambda pair: pair[0])]

    def _is_done(self, window: Window) -> bool:
        if window.epoch != self._epoch or window.lane not in self._latest:
            return window.epoch < self._epoch
        now, _, used_up = self._latest[window.lane]
        return window.number < now.number or (window.number == now.number and used_up)


def _start(window: Window) -> int:
    return window.start


def _without_missing(
    indices: Indices, parts: Sequence[tuple[Held, Indices, Indices]], lengths: Sequence[int]
) -> tuple[Indices, list[tuple[Held, Indices, Indices]], list[int]]:
    """Leave out the samples that are not there: slots are numbered anew, places become rows."""
    there = np.ones(len(indices), bool)
    kept = []
    for one, places, slots in parts:
        rows = places if one.rows is None else one.rows[places]
        there[slots[rows < 0]] = False
        kept.append((one, rows[rows >= 0], slots[rows >= 0]))
    renumbered = np.cumsum(there) - 1
    per_request = [int(part.sum()) for part in np.split(there, np.cumsum(lengths)[:-1])]
    return indices[there], [(one, rows, renumbered[slots]) for one, rows, slots in kept if len(rows)], per_request


def _cut(
    requests: Sequence[Request], lengths: Sequence[int], indices: Indices, columns: Sequence[Tensor]
) -> Iterator[Loaded]:
    start = 0
    for request, length in zip(requests, lengths, strict=True):
        stop = start + length
        batch: Batch = None
        if length:
            batch = columns[0][start:stop] if len(columns) == 1 else tuple(one[start:stop] for one in columns)
        yield Loaded(request, indices[start:stop], batch)
        start = stop
