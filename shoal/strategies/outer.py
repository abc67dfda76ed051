"""What is done with an average of weight differences: the outer optimizer of local SGD.

Plain takes the average as it is: the new weights are the average of the trainers' weights. Momentum and Nesterov treat
it as the negative of a gradient, as DiLoCo does (https://arxiv.org/abs/2311.08105).
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.core.config import IncrementalSettings

_RATES = {"plain": 1.0, "momentum": 0.7, "nesterov": 0.7}


class Outer:
    """Turns the average difference into the step of the common weights. `velocity` is its whole state."""

    def __init__(self, settings: IncrementalSettings, like: Tensor) -> None:
        self._kind, self._momentum = settings.outer, settings.outer_momentum
        self._rate = settings.outer_lr if settings.outer_lr is not None else _RATES[settings.outer]
        self.velocity = torch.zeros_like(like) if self._kind != "plain" else None

    def step(self, difference: Tensor) -> Tensor:
        """The step to take; `difference` may be overwritten."""
        if self.velocity is None:
            return difference.mul_(self._rate) if self._rate != 1.0 else difference
        self.velocity.mul_(self._momentum).add_(difference)
        if self._kind == "momentum":
            return self.velocity * self._rate
        return difference.add_(self.velocity, alpha=self._momentum).mul_(self._rate)
