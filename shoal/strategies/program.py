"""What the user gives, as strategies see it: model, objective, optimizer, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError
from shoal.strategies.objective import Objective
from shoal.strategies.trainable import check_model, check_optimizer

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
        check_model(self.model)
        if isinstance(self.optimizer, torch.optim.Optimizer):
            check_optimizer(self.model, self.optimizer)

    def build_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer over this model's trainable parameters. Called once, when the strategy binds the program."""
        if isinstance(self.optimizer, torch.optim.Optimizer):
            return self.optimizer
        built = self.optimizer([parameter for parameter in self.model.parameters() if parameter.requires_grad])
        if not isinstance(built, torch.optim.Optimizer):
            raise ConfigError(
                f"the function given as optimizer returned {type(built).__name__}, not an optimizer: {_GIVE_OPTIMIZER}"
            )
        check_optimizer(self.model, built)
        return built
