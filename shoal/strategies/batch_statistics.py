"""Batch normalisation over the whole global batch, whoever has which part of it (`statistics=global`).

While a step goes forward and backward, every normalisation by the statistics of a batch is computed here instead of in
PyTorch: each worker takes mean and variance of its own samples, all exchange them, and each normalises by those of all.
Backward exchanges what the gradient of a mean and a variance needs. Each worker makes the same change to its running
statistics, so their average over workers (see `RunningBuffers`) is that change, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.core.errors import ConfigError
from shoal.core.teams import Part
from shoal.strategies.base import Runtime
from shoal.strategies.normalising import normalise_by, standing_in
from shoal.strategies.statistics_exchange import Exchange, Kind, Numbers

_PART = 255  # of the view: the last number, far from those of teams
_WIDTH = 64  # channels for which there is room at least
_LOW = (torch.bfloat16, torch.float16)


class BatchStatistics:
    """The statistics of `module`'s batches over the group of `runtime`. The constructor is collective, once in a view.

    One step: with samples, forward and backward within `shared`, then `end`; without any, `attend`.
    """

    def __init__(self, module: nn.Module, runtime: Runtime) -> None:
        assert runtime.subgroup is not None, "a run offers groups of its members"
        self._layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)}
        widths = [layer.num_features for layer in self._layers.values()]
        types = {parameter.dtype for parameter in module.parameters()}
        dtype = torch.float64 if torch.float64 in types else torch.float32
        group = runtime.subgroup(Part(_PART, runtime.view.members))
        self._exchange = Exchange(group, max([_WIDTH, *widths]), dtype)
        self._checked, self._seen = False, set[int]()
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self._call = 0
        self._sharers = 0  # workers that take part in it
        self._suspects: tuple[int, ...] = ()
        self._exchange.waited_s = 0.0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Within it, what looks at its batch looks at the global one. For the thread that calls it."""
        with standing_in(self._normalise):
            yield

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Around the first forward of all: raises `ConfigError` if a layer was called and has not come by here."""
        if self._checked:
            yield
            return
        self._checked = True
        before = {name: _count(layer) for name, layer in self._layers.items()}
        yield
        for name, layer in self._layers.items():
            if _count(layer) != before[name] and id(layer.running_mean) not in self._seen:
                raise ConfigError(
                    f"statistics=global does not reach {name} ({type(layer).__name__}), which normalises in a way of "
                    "its own or was compiled: use statistics=grain, or give the model without torch.compile"
                )

    def share(self, otherwise: float) -> float:
        """The part that this worker's change of the running statistics has in that of all."""
        return 1.0 / self._sharers if self._sharers else otherwise

    def take_waited_s(self) -> float:
        """Seconds that were spent on exchanging since the last call, or since the step began."""
        waited_s, self._exchange.waited_s = self._exchange.waited_s, 0.0
        return waited_s

    @property
    def is_suspect(self) -> bool:
        """Whether values that are no numbers can have come from this worker: they spread to all others."""
        return not self._suspects or self._exchange.rank in self._suspects

    def end(self) -> None:
        """This worker has gone backward. Collective."""
        self._exchange.end()

    def attend(self) -> None:
        """This worker has no samples: take part in what the others do. Collective."""
        self._exchange.attend()

    def _normalise(
        self,
        given: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """What `F.batch_norm` gives where the whole batch is in one process."""
        if not training:
            return normalise_by(running_mean, running_var, given, weight, bias, eps)
        self._seen.add(id(running_mean))
        self._call += 1
        call = self._call
        count, mine = _moments(given)
        counts, everyone = self._exchange.sums(Kind.FORWARD, call, count, mine)
        total, mean, squares = combine(counts, everyone)
        if total < 2:
            raise ConfigError(
                "batch normalisation has one value for each channel in this batch, of which it can take no variance: "
                "choose a global_batch that does not leave a last batch of one sample, or statistics=grain"
            )
        self._sharers = len(self._exchange.present)
        if not self._suspects and not np.isfinite(squares).all():
            self._suspects = tuple(r for r in self._exchange.present if not np.isfinite(everyone[r]).all())
        with torch.no_grad():
            _move(running_mean, mean, momentum)
            _move(running_var, _unbiased(squares, total), momentum)
        kind = torch.float32 if given.dtype in _LOW else given.dtype
        means, variances = (torch.from_numpy(one).to(given.device, kind) for one in (mean, squares / total))

        def sums(own: Numbers) -> Numbers:
            """Over all workers, in the order of ranks."""
            _, all_sums = self._exchange.sums(Kind.BACKWARD, call, count, own)
            return _in_order(all_sums) / total

        normalised: Tensor = _Normalised.apply(given, weight, bias, means, variances, eps, sums)  # type: ignore[no-untyped-call]
        return normalised


def combine(counts: Sequence[int] | Any, everyone: Numbers) -> tuple[int, Numbers, Numbers]:
    """From counts, means and variances of some parts (``[part, 2, channels]``) to the count, the mean and the sum of
    squared differences from it of all together. In float64 and in the order of the parts; nothing cancels."""
    total = int(sum(counts))
    parts = [(n, one[0], one[1]) for n, one in zip(counts, everyone, strict=True) if n]
    if not parts:
        return 0, np.zeros(everyone.shape[2]), np.zeros(everyone.shape[2])
    mean = _in_order(np.stack([n * part for n, part, _ in parts])) / total
    squares = _in_order(np.stack([n * (variance + (part - mean) ** 2) for n, part, variance in parts]))
    return total, mean, squares


def _unbiased(squares: Numbers, total: int) -> Numbers:
    """The variance that running statistics are made of."""
    return squares / (total - 1)


def _in_order(rows: Numbers) -> Numbers:
    """The sum of `rows`, one after the other."""
    total: Numbers = np.zeros_like(rows[0])
    for row in rows:
        total += row
    return total


def _moments(given: Tensor) -> tuple[int, Numbers]:
    """How many values each channel has here, and their mean and variance."""
    channels = given.shape[1]
    count = given.numel() // channels if channels else 0
    if not count:
        return 0, np.zeros((2, channels))
    values = given.detach()
    pair = torch.batch_norm_update_stats(values.float() if given.dtype in _LOW else values, None, None, 0.0)
    return count, torch.stack(pair).cpu().double().numpy()


def _move(running: Tensor | None, towards: Numbers, momentum: float) -> None:
    if running is not None:
        value = torch.from_numpy(towards).to(running.device)
        running.copy_((1.0 - momentum) * running.double() + momentum * value)


def _count(layer: _BatchNorm) -> int:
    return int(layer.num_batches_tracked) if layer.num_batches_tracked is not None else 0


class _Normalised(torch.autograd.Function):
    """``(given - mean) / sqrt(variance + eps) * weight + bias``, where mean and variance are those of all workers'
    samples, so that the gradient goes through them, too."""

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        sums: Callable[[Numbers], Numbers],
    ) -> Tensor:
        ctx.save_for_backward(given, weight, mean, variance)
        ctx.eps, ctx.sums = eps, sums
        return normalise_by(mean, variance, given, weight, bias, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, mean, variance = ctx.saved_tensors
        kind, values = given.dtype, given
        if kind in _LOW:
            values, grad = values.float(), grad.float()
        inverse = torch.rsqrt(variance + ctx.eps)
        ones = torch.ones_like(variance)
        channels = (1, -1, *[1] * (given.dim() - 2))
        product, plain = torch.zeros_like(mean), torch.zeros_like(mean)
        if values.numel():
            # with a variance of 1 the kernel gives the plain sums of grad * (given - mean), and of grad
            _, product, plain = torch.ops.aten.native_batch_norm_backward(
                grad, values, None, mean, ones, None, None, False, 0.0, [False, True, True]
            )
        grad_given = None
        if ctx.needs_input_grad[0]:
            own = torch.stack((product, plain)).cpu().double().numpy()
            means = torch.from_numpy(ctx.sums(own)).to(given.device, mean.dtype)
            scale = inverse if weight is None else inverse * weight
            # grad * scale, less what the means of grad and of grad * (given - mean) take away from each value
            grad_given = normalise_by(mean, ones, values, -scale * inverse.square() * means[0], -scale * means[1], 0.0)
            grad_given.addcmul_(grad, scale.view(channels))
            grad_given = grad_given.to(kind)
        of_weight = product * inverse if ctx.needs_input_grad[1] else None
        return grad_given, of_weight, plain if ctx.needs_input_grad[2] else None, None, None, None, None
