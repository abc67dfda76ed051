"""Metrics: what is measured at evaluation next to the loss, as one value per sample."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError
from shoal.strategies.program import Metric


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest output is the target, else 0. Classes are in the second dimension."""
    return (output.argmax(dim=1) == target).to(torch.float64)


def with_defaults(loss: object, metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """The user's metrics, and accuracy where the loss says that this is classification."""
    if metrics is not None and not (isinstance(metrics, Mapping) and all(callable(one) for one in metrics.values())):
        raise ConfigError(
            f"metrics={metrics!r}: give a dictionary from names to functions, such as "
            "{'accuracy': shoal.metrics.accuracy}"
        )
    chosen: dict[str, Metric] = {}
    if metrics is None and type(loss) is nn.CrossEntropyLoss and loss.ignore_index == -100:
        chosen["accuracy"] = _class_accuracy
    return {**chosen, **(metrics or {})}


def _class_accuracy(output: Tensor, target: Tensor) -> Tensor:
    if target.is_floating_point():  # class probabilities
        target = target.argmax(dim=1)
    return accuracy(output, target)
