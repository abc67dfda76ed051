"""The oracle: a program trained in plain PyTorch, in one process, as a textbook would.

Nothing of Shoal's computing is used, only the order of samples and the seeds of draws, which the first law states.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.core.order import epoch_order
from shoal.core.seeds import grain_seed
from shoal.testing.plan import RULES
from shoal.testing.soak.network import CLIPS, IGNORED, Network, Tensors, make_data, make_model, make_optimizer
from shoal.testing.soak.program import Program


class Unfit(Exception):  # noqa: N818 - no error, a property of a program
    """Plain PyTorch cannot train this program either."""


@dataclass(frozen=True)
class Truth:
    """What training must give. `first` is the loss on all samples before it, `last` after it."""

    losses: tuple[float, ...]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    test_loss: float
    first: float
    last: float


@cache
def truth(program: Program, grain: int, by_rows: bool = False, nudged: bool = False) -> Truth:
    """Train `program`, whose batches are cut into grains of so many samples. `by_rows`: of a sparse table only those
    rows are updated that a batch touches, as on servers. `nudged`: from weights that are each off by as little as
    there is, to see what becomes of rounding. Raises `Unfit`."""
    threads, chance = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        return _train(program, grain, by_rows, nudged)
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(chance)


@torch.no_grad()
def _begun(model: nn.Module, program: Program) -> float:
    """The loss before training, with weights within their limits, as they are after the first step."""
    begun, clip = copy.deepcopy(model), CLIPS[program.clip]
    if clip.weights is not None:
        for parameter in begun.parameters():
            if parameter.requires_grad:
                parameter.clamp_(*clip.weights)
    return whole_loss(begun, program)


@torch.no_grad()
def _nudge(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.copy_(torch.nextafter(parameter, 2 * parameter))


def _train(program: Program, grain: int, by_rows: bool, nudged: bool) -> Truth:
    model, data = make_model(program), make_data(program)
    if nudged:
        _nudge(model)
    optimizer = make_optimizer(program, [p for p in model.parameters() if p.requires_grad])
    rates = [group["lr"] for group in optimizer.param_groups]
    clip, factor = CLIPS[program.clip], RULES[program.schedule].factor
    first = _begun(model, program)
    losses: list[float] = []
    seen = 0
    for epoch in range(program.epochs):
        order = epoch_order(program.seed, epoch, program.samples)
        for number, start in enumerate(range(0, program.samples, program.batch)):
            rows = torch.from_numpy(np.array(order[start : start + program.batch]))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor(len(losses), seen, epoch + number / program.steps_per_epoch)
            optimizer.zero_grad(set_to_none=True)
            model.train()
            losses.append(_gradient(model, tuple(part[rows] for part in data), program, grain, len(losses)))
            if clip.value is not None:
                nn.utils.clip_grad_value_(model.parameters(), clip.value)
            if clip.norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip.norm)
            untouched = _Untouched(model, optimizer, data[0][rows]) if by_rows and program.sparse else None
            optimizer.step()
            if clip.weights is not None:
                with torch.no_grad():
                    for parameter in model.parameters():
                        if parameter.requires_grad:
                            parameter.clamp_(*clip.weights)
            if untouched is not None:
                untouched.put_back()
            seen += len(rows)
    if not all(map(math.isfinite, losses)):
        raise Unfit("a loss is not finite")
    return Truth(
        tuple(losses),
        {name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        {name: buffer.clone() for name, buffer in model.named_buffers()},
        whole_loss(model, program, test=True),
        first,
        whole_loss(model, program),
    )


_BEGIN_AT_ZERO = {"momentum_buffer", "exp_avg", "exp_avg_sq"}


class _Untouched:
    """The rows of the table that a batch does not name, with what the optimizer remembers of them."""

    def __init__(self, model: Network, optimizer: torch.optim.Optimizer, named: Tensor) -> None:
        table = model.entry.weight
        assert isinstance(table, nn.Parameter)
        self._remembered = optimizer.state[table]
        self._new = not self._remembered
        self._rows = torch.ones(len(table), dtype=torch.bool)
        self._rows[named.flatten()] = False
        remembered = [one for one in self._remembered.values() if isinstance(one, Tensor)]
        there = [table.detach(), *(one for one in remembered if one.shape == table.shape)]
        self._kept = [(tensor, tensor[self._rows].clone()) for tensor in there]

    def put_back(self) -> None:
        for tensor, rows in self._kept:
            tensor[self._rows] = rows
        for name in _BEGIN_AT_ZERO & set(self._remembered) if self._new else ():
            self._remembered[name][self._rows] = 0.0  # weight decay is no reason to remember them


def _gradient(model: nn.Module, batch: Tensors, program: Program, grain: int, step: int) -> float:
    """Leave the gradient of a global batch in the parameters, and return its loss. Batch normalisation sees a grain;
    running statistics move by the average of what the grains did; what draws is seeded for each grain."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(_there(norm.running_mean).clone(), _there(norm.running_var).clone()) for norm in norms]
    after = [(torch.zeros_like(mean), torch.zeros_like(variance)) for mean, variance in before]
    size = len(batch[-1])
    total = weight = 0.0
    for number, start in enumerate(range(0, size, grain)):
        part = tuple(tensor[start : start + grain] for tensor in batch)
        for norm, (mean, variance) in zip(norms, before, strict=True):
            _there(norm.running_mean).copy_(mean)
            _there(norm.running_var).copy_(variance)
        torch.manual_seed(grain_seed(program.seed, step, number))
        part_sum, counted = _loss(model, part, program)
        part_sum.backward()  # type: ignore[no-untyped-call]
        total, weight = total + float(part_sum.detach()), weight + counted
        for norm, (mean, variance) in zip(norms, after, strict=True):
            mean.add_(_there(norm.running_mean), alpha=len(part[-1]) / size)
            variance.add_(_there(norm.running_var), alpha=len(part[-1]) / size)
    for norm, (mean, variance) in zip(norms, after, strict=True):
        _there(norm.running_mean).copy_(mean)
        _there(norm.running_var).copy_(variance)
        norm.num_batches_tracked = torch.tensor(step + 1)
    if program.loss != "sum" and not weight:
        raise Unfit("a batch has nothing to learn from")
    divisor = 1.0 if program.loss == "sum" else weight
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = (parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad) / divisor
    return total / divisor


def _there(statistic: Tensor | None) -> Tensor:
    assert statistic is not None
    return statistic


def _loss(model: nn.Module, batch: Tensors, program: Program) -> tuple[Tensor, float]:
    """The sum over some samples, and what it is to be divided by."""
    *inputs, target = batch
    output = model(*inputs)
    match program.loss:
        case "squares":
            return F.mse_loss(output, target, reduction="sum"), float(target.numel())
        case "masked" | "pair":
            counted = float((target != IGNORED).sum())
            return F.cross_entropy(output, target, ignore_index=IGNORED, reduction="sum"), counted
        case "weighted":
            weight = torch.tensor([0.5, 1.0, 2.0], dtype=output.dtype)
            return F.cross_entropy(output, target, weight=weight, reduction="sum"), float(weight[target].sum())
        case "smooth":
            return F.cross_entropy(output, target, label_smoothing=0.1, reduction="sum"), float(len(target))
        case _:
            return F.cross_entropy(output, target, reduction="sum"), float(len(target))


@torch.no_grad()
def whole_loss(model: nn.Module, program: Program, test: bool = False) -> float:
    """The loss on all samples at once, without draws."""
    model.eval()
    total, weight = _loss(model, make_data(program, test), program)
    model.train()
    return float(total) / weight if weight and program.loss != "sum" else float(total)
