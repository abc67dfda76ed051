"""What is pushed takes the place of what was there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.store.updaters.base import Array, State, Updater, updaters


@updaters.add("assign")
@dataclass(frozen=True)
class Assign(Updater):
    """The last one wins. Rates mean nothing to it."""

    only_floats: ClassVar[bool] = False

    def update(self, values: Array, gradient: Array, state: State, rate: float, rows: Array | None = None) -> None:
        if rows is None:
            values[...] = gradient
        else:
            values[rows] = gradient
