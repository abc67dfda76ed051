"""What the user gives, as strategies see it: model, objective, optimizer, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError
from shoal.strategies.objective import Objective

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Metric = Callable[..., "Tensor | tuple[Tensor, Tensor | float]"]
_GIVE_OPTIMIZER = "give a function such as lambda params: torch.optim.SGD(params, lr=0.1)"


@dataclass(frozen=True)
class Program:
    """A model and how it is trained. `metrics` are computed at evaluation, next to the loss.

    A metric is given ``(output, target)`` where the loss is a module and ``(model, batch)`` where it is a function;
    it returns one value per sample (their mean is reported) or a pair (sum, weight).
    """

    model: nn.Module
    objective: Objective
    optimizer: OptimizerFactory | torch.optim.Optimizer
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, torch.optim.Optimizer) and not callable(self.optimizer):
            raise ConfigError(f"optimizer={self.optimizer!r} is neither an optimizer nor a function: {_GIVE_OPTIMIZER}")
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ConfigError("the model has no parameter that requires a gradient: nothing can be trained")
        uninitialised = [n for n, p in self.model.named_parameters() if nn.parameter.is_lazy(p)]
        if uninitialised:
            raise ConfigError(
                f"the model's parameters {', '.join(uninitialised[:3])} have no shape yet (lazy modules): "
                "run one batch through the model before you hand it over"
            )

    def build_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer over this model's trainable parameters. Called once, when the strategy binds the program."""
        if isinstance(self.optimizer, torch.optim.Optimizer):
            return self.optimizer
        built = self.optimizer([parameter for parameter in self.model.parameters() if parameter.requires_grad])
        if isinstance(built, torch.optim.LBFGS):
            raise ConfigError(
                "optimizer: LBFGS evaluates the model several times in one step, which a distributed step cannot: "
                "use an optimizer that takes one gradient a step"
            )
        if not isinstance(built, torch.optim.Optimizer):
            raise ConfigError(
                f"the function given as optimizer returned {type(built).__name__}, not an optimizer: {_GIVE_OPTIMIZER}"
            )
        return built
