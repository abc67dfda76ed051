"""The user's loss as a sum and a weight, so that it can be added up over grains and workers and divided once.

A mean cannot be combined with other means; a sum and its weight can, exactly. PyTorch's own loss modules are taken
apart into both (`ignore_index`, class weights, element-wise means); a function says itself what it returns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from shoal.core.errors import ConfigError

Batch = Any  # what the data source yields: a tuple, list or dict of tensors
LossFunction = Callable[[nn.Module, Batch], "Tensor | tuple[Tensor, Tensor | float]"]


@dataclass(frozen=True)
class LossSum:
    """A loss over some samples: `total` is what is differentiated, `weight` what it is divided by in the end."""

    total: Tensor
    weight: float
    output: Tensor | None = None
    target: Tensor | None = None

    def backward(self) -> None:
        """Add the gradient of the sum to the parameters."""
        if not self.total.requires_grad:
            raise ConfigError(
                "the loss does not depend on the model's parameters, so nothing can be trained: is it computed under "
                "torch.no_grad(), or from something that was detached?"
            )
        self.total.backward()  # type: ignore[no-untyped-call]


class Objective:
    """Computes a `LossSum`. `divided` is False where the user asked for a plain sum over the global batch."""

    divided: bool = True

    def __call__(self, model: nn.Module, batch: Batch) -> LossSum:
        raise NotImplementedError


def make_objective(loss: nn.Module | LossFunction) -> Objective:
    """Turn what the user gave as `loss` into an `Objective`; raises `ConfigError` on what cannot be combined."""
    if isinstance(loss, nn.Module):
        return _ModuleObjective(loss)
    if not callable(loss):
        raise ConfigError(
            f"loss={loss!r}: give a loss module such as nn.CrossEntropyLoss(), or a function (model, batch) -> loss"
        )
    if getattr(loss, "__module__", "") == "torch.nn.functional":
        raise ConfigError(
            f"loss=torch.nn.functional.{getattr(loss, '__name__', '')}: give the module (nn.CrossEntropyLoss() for "
            "F.cross_entropy), or a function (model, batch) -> loss"
        )
    return _FunctionObjective(loss)


def batch_size(batch: Batch) -> int:
    """The number of samples in a collated batch: the first dimension of its first tensor."""
    first = _first_tensor(batch)
    if first is None:
        raise ConfigError("a batch holds no tensor")
    return first.shape[0]


def _first_tensor(batch: Batch) -> Tensor | None:
    """Besides tensors a batch may hold text, and lists of what was not collated: those are looked at last."""
    if isinstance(batch, Tensor):
        return batch
    if not isinstance(batch, (dict, tuple, list)):
        return None
    parts = sorted(batch.values() if isinstance(batch, dict) else batch, key=lambda part: not isinstance(part, Tensor))
    return next((found for part in parts if (found := _first_tensor(part)) is not None), None)


class _FunctionObjective(Objective):
    def __init__(self, function: LossFunction) -> None:
        self._function = function

    def __call__(self, model: nn.Module, batch: Batch) -> LossSum:
        result = self._function(model, batch)
        if isinstance(result, tuple):
            total, weight = result
            return LossSum(_scalar(total), float(weight))
        samples = batch_size(batch)
        return LossSum(_scalar(result) * samples, float(samples))


class _ModuleObjective(Objective):
    """``loss(model(*inputs), target)`` for batches whose last part is the target."""

    def __init__(self, loss: nn.Module) -> None:
        reduction = getattr(loss, "reduction", "mean")
        if reduction == "none":
            raise ConfigError(f"loss={loss}: reduction='none' gives no single loss: use 'mean' or 'sum'")
        self.divided = reduction != "sum"
        self._weigh = _weigher(loss) if self.divided else None
        self._loss = loss
        if self._weigh is not None or not self.divided:
            self._loss = copy.copy(loss)
            self._loss.reduction = "sum"  # type: ignore[assignment]  # a string attribute of every loss module

    def __call__(self, model: nn.Module, batch: Batch) -> LossSum:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise ConfigError(
                f"the data yields {type(batch).__name__}s that are not (input, target): "
                "give loss as a function (model, batch) -> loss"
            )
        *inputs, target = batch
        output = model(*inputs)
        value = _scalar(self._loss(output, target))
        if not self.divided:
            return LossSum(value, 0.0, output, target)
        if self._weigh is not None:
            return LossSum(value, self._weigh(self._loss, output, target), output, target)
        samples = batch_size(batch)  # a mean over samples
        return LossSum(value * samples, float(samples), output, target)


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(f"the loss gives {what}, not one number: return the mean over samples, or (sum, weight)")
    return value.reshape(())


Weigher = Callable[[Any, Tensor, Tensor], float]


def _by_class(loss: Any, output: Tensor, target: Tensor) -> float:
    if target.is_floating_point():  # class probabilities: the mean is over positions
        return output.numel() / output.shape[1 if output.dim() > 1 else 0]
    counted = target[target != loss.ignore_index]
    return float(counted.numel() if loss.weight is None else loss.weight[counted].sum())


def _by_element(loss: Any, output: Tensor, target: Tensor) -> float:
    return float(np.prod(np.broadcast_shapes(output.shape, target.shape)))


def _by_sample(loss: Any, output: Tensor, target: Tensor) -> float:
    return float(output.shape[0])


_BY_ELEMENT = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss, nn.SoftMarginLoss,
    nn.PoissonNLLLoss,
)  # fmt: skip


def _weigher(loss: nn.Module) -> Weigher | None:
    """What a loss module's mean divides by; None where it is the number of samples and the mean is taken as it is."""
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)):
        return _by_class
    if isinstance(loss, nn.KLDivLoss):
        return _by_sample if loss.reduction == "batchmean" else _by_element
    if type(loss) in _BY_ELEMENT:
        return _by_element
    return None
