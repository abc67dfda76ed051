"""Averages of what is pushed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shoal.core.errors import ConfigError
from shoal.store.updaters.base import Array, State, check_option, updaters
from shoal.store.updaters.elementwise import ElementWise


@updaters.add("average")
@dataclass(frozen=True)
class Average(ElementWise):
    """`running`: the values are the mean of all that was pushed. `mixing`: they go the part `rate` of the way towards
    each that is pushed, which is elastic averaging."""

    mode: Literal["running", "mixing"] = "mixing"
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.mode not in ("running", "mixing"):
            raise ConfigError(f"option 'mode' of updater 'average' is {self.mode!r}: give 'running' or 'mixing'")
        check_option("average", "rate", self.rate, 0.0)
        if self.rate > 1.0:
            raise ConfigError(f"option 'rate' of updater 'average' is {self.rate!r}: give a number between 0 and 1")

    def update(self, values: Array, gradient: Array, state: State, rate: float, rows: Array | None = None) -> None:
        if self.mode == "mixing":
            super().update(values, gradient, state, rate, rows)
            return
        count = state.setdefault("count", np.zeros(1 if rows is None else len(values), np.int64))
        if rows is None and len(count) == 1:
            count += 1
            super().update(values, gradient, state, 1.0 / int(count[0]))
            return
        if len(count) != len(values):  # until now it was always pushed whole
            state["count"] = count = np.full(len(values), count[0])
        chosen = np.arange(len(values)) if rows is None else rows
        count[chosen] += 1
        share = (1.0 / count[chosen]).astype(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
        values[chosen] += (gradient - values[chosen]) * share

    def apply(self, values: Array, gradient: Array, moments: tuple[Array, ...], rate: float, step: int) -> None:
        difference = gradient - values
        difference *= rate
        values += difference
