"""The oracle: the same training in plain PyTorch, in one process, written down as a textbook would.

Nothing of Shoal's computing is used, only the order of samples and the seeds, which the first law states as values.
What dropout keeps is worked out here once more, element by element, from these seeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.core.many_seeds import scramble
from shoal.core.order import epoch_order
from shoal.core.seeds import GOLDEN, step_seed
from shoal.testing.plan import RULES, Plan
from shoal.testing.subjects import IGNORED, Tensors


@dataclass(frozen=True)
class Reference:
    """What training must give: the loss of every step, and the model and its evaluation at the end."""

    losses: tuple[float, ...]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    evaluation: dict[str, float]


@cache
def reference(plan: Plan) -> Reference:
    """Train `plan` in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(plan)
    finally:
        torch.set_num_threads(threads)


def _train(plan: Plan) -> Reference:
    assert plan.precision == "float32"
    model = plan.what.model()
    data = plan.what.train(plan.samples)
    optimizer = plan.make_optimizer([p for p in model.parameters() if p.requires_grad])
    initial_rate = optimizer.param_groups[0]["lr"]
    factor = RULES[plan.schedule].factor
    batches_per_epoch = len(range(0, plan.samples, plan.global_batch))
    losses: list[float] = []
    seen = 0
    for epoch in range(plan.epochs):
        order = epoch_order(plan.seed, epoch, plan.samples)
        for number, start in enumerate(range(0, plan.samples, plan.global_batch)):
            rows = torch.from_numpy(np.array(order[start : start + plan.global_batch]))
            batch = tuple(tensor[rows] for tensor in data)
            optimizer.param_groups[0]["lr"] = initial_rate * factor(
                len(losses), seen, epoch + number / batches_per_epoch
            )
            optimizer.zero_grad(set_to_none=True)
            model.train()
            in_one = plan.statistics == "global"
            with _dropout_by_sample(plan, len(losses), rows):
                loss = (_mean_cross_entropy if in_one else _LOSSES[plan.subject])(model, batch, plan, len(losses))
            loss.backward()  # type: ignore[no-untyped-call]
            if plan.clip.value is not None:
                nn.utils.clip_grad_value_(model.parameters(), plan.clip.value)
            if plan.clip.norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), plan.clip.norm)
            optimizer.step()
            if plan.clip.weights is not None:
                with torch.no_grad():
                    for parameter in model.parameters():
                        if parameter.requires_grad:
                            parameter.clamp_(*plan.clip.weights)
            losses.append(float(loss.detach()))
            seen += len(rows)
    return Reference(
        tuple(losses),
        {name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        {name: buffer.clone() for name, buffer in model.named_buffers()},
        evaluate(model, plan),
    )


# ---- the loss of a global batch


def _mean_cross_entropy(model: nn.Module, batch: Tensors, plan: Plan, step: int) -> Tensor:
    features, labels = batch
    return F.cross_entropy(model(features), labels)


def _normalised(model: nn.Module, batch: Tensors, plan: Plan, step: int) -> Tensor:
    """Batch normalisation sees one grain; running statistics move by the average of what the grains did."""
    images, labels = batch
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(_whole(norm.running_mean), _whole(norm.running_var)) for norm in norms]
    after = [(torch.zeros_like(mean), torch.zeros_like(variance)) for mean, variance in before]
    total = torch.zeros(())
    for _, rows in _grains(plan, len(images)):
        for norm, (mean, variance) in zip(norms, before, strict=True):
            norm.running_mean, norm.running_var = mean.clone(), variance.clone()
        logits = model(images[rows])
        total = total + F.cross_entropy(logits, labels[rows], reduction="sum")
        share = (rows.stop - rows.start) / len(images)
        for norm, (mean, variance) in zip(norms, after, strict=True):
            mean.add_(share * _whole(norm.running_mean))
            variance.add_(share * _whole(norm.running_var))
    for norm, (mean, variance) in zip(norms, after, strict=True):
        norm.running_mean, norm.running_var = mean, variance
        norm.num_batches_tracked = torch.tensor(step + 1)
    return total / len(images)


def _whole(statistic: Tensor | None) -> Tensor:
    assert statistic is not None
    return statistic


def _drawn(model: nn.Module, batch: Tensors, plan: Plan, step: int) -> Tensor:
    """The loss is the mean over the tokens that count."""
    tokens, targets = batch
    logits = model(tokens)
    if plan.subject == "gpt-module":
        logits = logits.transpose(1, 2)
    total = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )
    return total / (targets != IGNORED).sum()


@contextlib.contextmanager
def _dropout_by_sample(plan: Plan, step: int, samples: Tensor) -> Iterator[None]:
    """Dropout on ``[samples, rows, columns]`` keeps what a hash of (seed, step, call, sample, row, column) says."""
    generator = torch.Generator().manual_seed(step_seed(plan.seed, step))

    def dropout(given: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training:
            return given
        call = np.uint64(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        sample, row, column = np.ix_(samples.numpy(), *(np.arange(size) for size in given.shape[1:]))
        own = scramble(call ^ sample.astype(np.uint64))
        of_row = np.where(row == 0, own, scramble(own ^ row.astype(np.uint64)))
        words = scramble(of_row + (column // 4).astype(np.uint64) * np.uint64(GOLDEN))
        sixteen_bits = words >> (16 * (column % 4)).astype(np.uint64) & np.uint64(0xFFFF)
        return given * torch.from_numpy(sixteen_bits >= round(p * 65536)) / (1 - p)

    with mock.patch.object(F, "dropout", dropout):
        yield


def _grains(plan: Plan, samples: int) -> Iterator[tuple[int, slice]]:
    assert plan.grain is not None
    for number, start in enumerate(range(0, samples, plan.grain)):
        yield number, slice(start, min(start + plan.grain, samples))


_LOSSES: dict[str, Callable[[nn.Module, Tensors, Plan, int], Tensor]] = {
    "mlp": _mean_cross_entropy,
    "branches": _mean_cross_entropy,
    "table": _mean_cross_entropy,
    "resnet": _normalised,
    "gpt": _drawn,
    "gpt-module": _drawn,
}


@torch.no_grad()
def evaluate(model: nn.Module, plan: Plan) -> dict[str, float]:
    """Loss and accuracy on all test data at once."""
    inputs, targets = plan.what.test(plan.test_samples)
    model.eval()
    logits = model(inputs)
    if plan.subject == "gpt":
        logits = logits.transpose(1, 2)
    counted = targets != IGNORED
    loss = F.cross_entropy(logits, targets, ignore_index=IGNORED)
    right = (logits.argmax(dim=1) == targets) & counted
    model.train()
    return {"test_loss": float(loss), "test_accuracy": int(right.sum()) / int(counted.sum())}
