"""What is pushed is added to what is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.store.updaters.base import Array, updaters
from shoal.store.updaters.elementwise import ElementWise


@updaters.add("add")
@dataclass(frozen=True)
class Add(ElementWise):
    """Sums, times a rate that is 1 unless given. Whole numbers are added as they are: they take no rate."""

    only_floats: ClassVar[bool] = False
    rate: float = 1.0

    def apply(self, values: Array, gradient: Array, moments: tuple[Array, ...], rate: float, step: int) -> None:
        if rate != 1.0 and values.dtype.kind == "f":
            gradient = gradient * rate
        np.add(values, gradient, out=values)
