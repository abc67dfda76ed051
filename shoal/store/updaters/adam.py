"""Adam, as `torch.optim.Adam` and `AdamW` do it, and for rows, but for the place of epsilon, `SparseAdam`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.store.updaters.base import Array, check_option, updaters
from shoal.store.updaters.elementwise import ElementWise


@updaters.add("adam")
@dataclass(frozen=True)
class Adam(ElementWise):
    """Weight decay is added to the gradient, or, `decoupled`, taken off the values first (AdamW). Rows that have no
    gradient are left alone; the number of updates, which corrects the moments' bias, is that of the slice."""

    counts: ClassVar[bool] = True
    rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        check_option("adam", "rate", self.rate, 0.0)
        check_option("adam", "beta1", self.beta1, 0.0, 1.0)
        check_option("adam", "beta2", self.beta2, 0.0, 1.0)
        check_option("adam", "epsilon", self.epsilon, 0.0)
        check_option("adam", "weight_decay", self.weight_decay, 0.0)

    def moments(self) -> tuple[str, ...]:
        return ("mean", "square")

    def apply(self, values: Array, gradient: Array, moments: tuple[Array, ...], rate: float, step: int) -> None:
        mean, square = moments
        if self.weight_decay and self.decoupled:
            values *= 1.0 - rate * self.weight_decay
        elif self.weight_decay:
            gradient = gradient + self.weight_decay * values
        mean += (1.0 - self.beta1) * (gradient - mean)
        square *= self.beta2
        scratch = gradient * gradient
        scratch *= 1.0 - self.beta2
        square += scratch
        np.sqrt(square, out=scratch)
        scratch /= (1.0 - self.beta2**step) ** 0.5
        scratch += self.epsilon
        np.divide(mean, scratch, out=scratch)
        scratch *= rate / (1.0 - self.beta1**step)
        values -= scratch
