"""Windows in memory: loaded in the background before they are needed, within a budget."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.order import Indices
from shoal.data.shards.columns import Values, joined, rows_of
from shoal.data.shards.decoding import BlockReader
from shoal.data.shards.lanes import LaneOrder, Piece, Window

Key = tuple[int, int, int]

_END_S = 5.0  # for threads to end, when the interpreter does


@dataclass(frozen=True)
class Held:
    """A window in memory: its samples in the order in which they are drawn. Where some are left out, `rows` says for
    each place of the window which of the rows in `values` it is, -1 for none."""

    window: Window
    values: Sequence[Values]
    numbers: npt.NDArray[Any]
    rows: Indices | None = None

    @cached_property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values) + self.numbers.nbytes


def load_window(window: Window, order: LaneOrder, reader: BlockReader) -> Held:
    """Read the blocks of a window. Raises what the reader does."""
    sizes = [piece.stop - piece.start for piece in window.pieces]
    read = [(piece, reader.read(piece.block, twice=_is_cut(piece, order))) for piece in window.pieces]
    drawn, rows = order.shuffled(window), None
    parts = [[rows_of(one, piece.start, piece.stop) for one in values] for piece, values in read if values is not None]
    if len(parts) < len(read):
        there = np.repeat([values is not None for _, values in read], sizes)
        places = np.arange(len(there)) if drawn is None else drawn
        kept = there[places]
        drawn, rows = (np.cumsum(there) - 1)[places[kept]], np.where(kept, np.cumsum(kept) - 1, -1)
    columns = [joined(column, drawn) for column in zip(*parts, strict=True)]
    return Held(window, columns, order.numbers(window), rows)


def _is_cut(piece: Piece, order: LaneOrder) -> bool:
    return piece.stop - piece.start < order.blocks.rows[piece.block]


class Windows:
    """Holds windows. What is expected is loaded by threads in the background, in that order, as long as all of it is
    within its share of `budget_bytes`; what is needed is loaded in any case. Threads end when there is nothing left to
    load."""

    def __init__(self, load: Callable[[Window], Held], budget_bytes: int, row_bytes: float, threads: int) -> None:
        self._load, self._budget, self._row_bytes, self._threads = load, budget_bytes, row_bytes, threads
        self._changed = threading.Condition()
        self._held: dict[Key, Held] = {}
        self._queue: dict[Key, Window] = {}
        self._loading: dict[Key, Window] = {}
        self._failed: dict[Key, BaseException] = {}
        self._at_work = 0
        self._over = False
        _ALL[self] = os.getpid()

    def need(self, windows: Sequence[Window], stopped: Callable[[], bool]) -> dict[Key, Held] | None:
        """These windows, when they are there; None if `stopped` says meanwhile that they are not needed any more
        (`wake` makes it look). Raises what loading one of them did."""
        with self._changed:
            missing = {w.key: w for w in windows if w.key not in self._held and w.key not in self._loading}
            self._queue = {**missing, **{key: w for key, w in self._queue.items() if key not in missing}}
            self._start()
            while not all(window.key in self._held for window in windows):
                failed = next((self._failed.pop(w.key) for w in windows if w.key in self._failed), None)
                if failed is not None:
                    raise failed
                if stopped():
                    return None
                self._changed.wait()
            return {window.key: self._held[window.key] for window in windows}

    def expect(
        self, windows: Iterable[Window], done: Callable[[Window], bool], strange: Callable[[Window], bool], share: float
    ) -> None:
        """Go on with these, in order of urgency, instead of what was expected before. Those that are `done` go; those
        that are `strange`, which somebody needed before, go where there is too much. `share` of the budget may be
        used: the rest is for those who read other lanes."""
        with self._changed:
            for key in [key for key, held in self._held.items() if done(held.window)]:
                del self._held[key]
            used = sum(held.nbytes for held in self._held.values()) + sum(map(self._size, self._loading.values()))
            for key in [key for key, held in self._held.items() if strange(held.window)]:
                if used > self._budget * share:
                    used -= self._held.pop(key).nbytes
            self._queue = {}
            for window in windows:
                if window.key in self._held or window.key in self._loading:
                    continue
                used += self._size(window)
                if used > self._budget * share:
                    break
                self._queue[window.key] = window
            self._start()

    def idle(self) -> None:
        """Nothing is expected any more. What is there is kept."""
        with self._changed:
            self._queue, self._failed = {}, {}

    def end(self) -> None:
        """Load nothing any more, whoever asks: the interpreter ends."""
        with self._changed:
            self._over = True

    def wait_ended(self, deadline_s: float) -> None:
        """Wait until no thread is at work."""
        with self._changed:
            self._changed.wait_for(lambda: self._at_work == 0, deadline_s)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _size(self, window: Window) -> float:
        return (window.stop - window.start) * self._row_bytes

    def _start(self) -> None:
        if self._over:
            return
        for _ in range(min(self._threads - self._at_work, len(self._queue))):
            self._at_work += 1
            threading.Thread(target=self._work, daemon=True, name="shoal-windows").start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue or self._over:
                    self._at_work -= 1
                    self._changed.notify_all()
                    return
                key = next(iter(self._queue))
                window = self._loading[key] = self._queue.pop(key)
            held, error = None, None
            try:
                held = self._load(window)
            except BaseException as raised:  # whoever needs the window is told
                error = raised
            with self._changed:
                del self._loading[key]
                if held is not None:
                    self._held[key] = held
                elif error is not None:
                    self._failed[key] = error
                self._changed.notify_all()


_ALL: weakref.WeakKeyDictionary[Windows, int] = weakref.WeakKeyDictionary()


@atexit.register
def _end_all() -> None:
    """No thread may be within Arrow when the interpreter ends: it would wait for the other for ever."""
    mine = [windows for windows, process in _ALL.items() if process == os.getpid()]  # of another none was forked
    for windows in mine:
        windows.end()
    until_s = time.monotonic() + _END_S
    for windows in mine:
        windows.wait_ended(max(0.0, until_s - time.monotonic()))
