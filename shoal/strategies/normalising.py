"""Batch normalisation by something else than PyTorch, wherever a model calls it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_FUNCTIONAL, _TORCH = F.batch_norm, torch.batch_norm
_here = threading.local()  # .normalise: what stands in for them on this thread
_lock, _inside = threading.Lock(), set[object]()


class Normalise(Protocol):
    """What stands in for `F.batch_norm`."""

    def __call__(
        self,
        given: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor: ...


def normalise_by(
    mean: Tensor | None, variance: Tensor | None, given: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise by statistics that are there. PyTorch does it, whatever stands in for it."""
    return _TORCH(given, weight, bias, mean, variance, False, 0.0, eps, torch.backends.cudnn.enabled)


@contextlib.contextmanager
def standing_in(normalise: Normalise) -> Iterator[None]:
    """Calls of batch normalisation on this thread, by layers or by the user's own code, go to `normalise`.

    A mode of PyTorch would not do: it is off where backward runs parts of a model again (activation checkpointing)."""
    before, me = getattr(_here, "normalise", None), object()
    with _lock:
        _inside.add(me)
        F.batch_norm, torch.batch_norm = _functional, _torch
    _here.normalise = normalise
    try:
        yield
    finally:
        _here.normalise = before
        with _lock:
            _inside.remove(me)
            if not _inside:
                F.batch_norm, torch.batch_norm = _FUNCTIONAL, _TORCH


def per_sample() -> contextlib.AbstractContextManager[None]:
    """Within it batch normalisation does not look at its batch: it takes the statistics that it has for given ones. So
    it can be seen what else in a model does. For the thread that calls it."""
    return standing_in(_per_sample)


def _per_sample(
    given: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    mean, variance = running_mean, running_var
    if mean is None or variance is None:
        mean, variance = given.new_zeros(given.shape[1]), given.new_ones(given.shape[1])
    return normalise_by(mean, variance, given, weight, bias, eps)


# the names of arguments are PyTorch's: calls may state them


@functools.wraps(_FUNCTIONAL)
def _functional(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002
    instead: Normalise | None = getattr(_here, "normalise", None)
    return (instead or _FUNCTIONAL)(input, *args, **kwargs)


@functools.wraps(_TORCH)
def _torch(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002
    instead: Normalise | None = getattr(_here, "normalise", None)
    if instead is None:
        return _TORCH(input, *args, **kwargs)
    names = ("weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn_enabled")
    told = dict(zip(names, args, strict=False)) | kwargs
    told.pop("cudnn_enabled", None)
    return instead(input, **told)
