"""Updaters that treat every element alike: they are given a block at a time, so that what they need besides stays in
the cache, and rows of a table as if they were all there is."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from shoal.store.updaters.base import Array, State, Updater, zeros

_BLOCK = 1 << 14  # elements


class ElementWise(Updater):
    """An updater that says what happens to one block of elements. `counts`: it wants to know how many updates there
    have been."""

    counts: ClassVar[bool] = False

    def moments(self) -> tuple[str, ...]:
        """Names of the arrays that it keeps, each of the shape of the values, zeros at first."""
        return ()

    @abstractmethod
    def apply(self, values: Array, gradient: Array, moments: tuple[Array, ...], rate: float, step: int) -> None:
        """Change a block of values and of each moment in place. `step` counts this slice's updates from 1."""

    def update(self, values: Array, gradient: Array, state: State, rate: float, rows: Array | None = None) -> None:
        step = self._count(state) if self.counts else 0
        for name in self.moments():
            if name not in state:
                state[name] = zeros(values)
        kept = [state[name] for name in self.moments()]
        height = max(1, _BLOCK * len(values) // max(1, values.size))
        if rows is None:
            for start in range(0, len(values), height):
                block = slice(start, start + height)
                self.apply(values[block], gradient[block], tuple(moment[block] for moment in kept), rate, step)
            return
        for start in range(0, len(rows), height):
            block = slice(start, start + height)
            chosen = rows[block]
            gathered = [array[chosen] for array in (values, *kept)]
            self.apply(gathered[0], gradient[block], tuple(gathered[1:]), rate, step)
            for array, changed in zip((values, *kept), gathered, strict=True):
                array[chosen] = changed

    def _count(self, state: State) -> int:
        step = state.setdefault("step", np.zeros(1, np.int64))
        step += 1
        return int(step[0])
