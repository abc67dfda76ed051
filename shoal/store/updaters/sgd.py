"""Stochastic gradient descent, as `torch.optim.SGD` does it."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import ConfigError
from shoal.store.updaters.base import Array, check_option, updaters
from shoal.store.updaters.elementwise import ElementWise


@updaters.add("sgd")
@dataclass(frozen=True)
class SGD(ElementWise):
    """With momentum, Nesterov's variant of it, and weight decay. Rows that have no gradient are left alone: neither
    their momentum nor their decay goes on meanwhile."""

    rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_option("sgd", "rate", self.rate, 0.0)
        check_option("sgd", "momentum", self.momentum, 0.0, 1.0)
        check_option("sgd", "weight_decay", self.weight_decay, 0.0)
        if self.nesterov and not self.momentum:
            raise ConfigError("option 'nesterov' of updater 'sgd' needs momentum: give momentum=0.9, or leave it out")

    def moments(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def apply(self, values: Array, gradient: Array, moments: tuple[Array, ...], rate: float, step: int) -> None:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * values
        if moments:
            (momentum,) = moments
            momentum *= self.momentum
            momentum += gradient
            gradient = gradient + self.momentum * momentum if self.nesterov else momentum
        values -= rate * gradient
