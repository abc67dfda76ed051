"""A worker that is slower than the others: it computes each of its passes several times, and uses one of them."""

from __future__ import annotations

import copy
import os

from torch import Tensor, nn

SLOWNESS_VARIABLE = "BENCHMARK_SLOWNESS"  # how many times as long the last worker takes


class Slowed(nn.Module):
    """`model`, which takes `times` as long for forward and backward together. What is computed in vain is computed on
    a copy, within forward."""

    def __init__(self, model: nn.Module, times: int) -> None:
        super().__init__()
        self.model = model
        self._times = times
        self._copies = [copy.deepcopy(model)] if times > 1 else []  # in a list, so that it is no part of this module

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            for twin in self._copies * (self._times - 1):
                twin.zero_grad()
                twin(x).sum().backward()
        output: Tensor = self.model(x)
        return output


def slowed(model: nn.Module, rank: int, workers: int) -> nn.Module:
    """`model` as worker `rank` has it: only the last one is slow."""
    return Slowed(model, int(os.environ[SLOWNESS_VARIABLE]) if rank == workers - 1 else 1)
