"""The order of samples that lie in pieces: pieces are shuffled, and samples within windows of a few pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.core.order import Indices, Order, epoch_order
from shoal.core.seeds import order_seed


class PieceOrder(Order):
    """Samples ``0 .. n-1`` lie one after the other in pieces of `rows`. So many pieces of a shuffled order as have at
    least `window_rows` samples are a window, whose samples come in any order before those of the next."""

    def __init__(self, seed: int, rows: Sequence[int], window_rows: int, shuffle: bool = True) -> None:
        self._seed, self._rows, self._window_rows, self._shuffle = seed, tuple(rows), window_rows, shuffle
        self._starts = np.cumsum([0, *rows])[:-1]
        self._made: tuple[int, list[tuple[int, ...]], Indices] | None = None  # of the last epoch that was asked for

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        if not self._shuffle:
            return np.arange(start, stop, dtype=np.int64)
        windows, begins = self._windows(epoch)
        first = int(np.searchsorted(begins, start, side="right")) - 1
        parts = []
        for number in range(first, len(windows)):
            begin, end = int(begins[number]), int(begins[number + 1])
            if begin >= stop:
                break
            parts.append(self._window(epoch, windows[number], number)[max(start - begin, 0) : min(stop, end) - begin])
        found: Indices = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return found

    def _window(self, epoch: int, pieces: tuple[int, ...], number: int) -> Indices:
        samples = np.concatenate([self._starts[piece] + np.arange(self._rows[piece]) for piece in pieces])
        # the order of the pieces comes from the same key: the counters of windows are far from its
        words = np.random.Philox(key=order_seed(self._seed, epoch), counter=[0, 0, number + 1, 0])
        mixed: Indices = samples[np.argsort(words.random_raw(len(samples)), kind="stable")].astype(np.int64)
        return mixed

    def _windows(self, epoch: int) -> tuple[list[tuple[int, ...]], Indices]:
        """The pieces of each window, and at which position it begins (one more than there are windows)."""
        if self._made is None or self._made[0] != epoch:
            self._made = epoch, *self._cut(epoch)
        return self._made[1:]

    def _cut(self, epoch: int) -> tuple[list[tuple[int, ...]], Indices]:
        found: list[tuple[int, ...]] = []
        begins = [0]
        pieces: list[int] = []
        count = 0
        for piece in epoch_order(self._seed, epoch, len(self._rows)).tolist():
            pieces.append(piece)
            count += self._rows[piece]
            if count >= self._window_rows:
                found.append(tuple(pieces))
                begins.append(begins[-1] + count)
                pieces, count = [], 0
        if pieces:
            found.append(tuple(pieces))
            begins.append(begins[-1] + count)
        return found, np.array(begins, np.int64)
