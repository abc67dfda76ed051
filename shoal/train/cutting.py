"""How big a grain is, and whether grains may share a pass: decided once a run, by looking at the model.

Where nothing in the model looks at its batch or draws per batch, several grains in one pass give the same sums, and
one big pass is quicker than many small ones. That is found out by trying: the loss and gradient of two small batches
must add up to those of both together, and no random number may be drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.core.grains import Grain
from shoal.strategies.objective import Batch, Objective

_PASS_GRAIN = 32  # samples that batch normalisation sees where the user states no grain
_MERGED_GRAINS = 64  # grains in a global batch where their size costs nothing
_TOLERANCE = 1e-3  # rounding differs by 1e-6 or so, a model that looks at its batch by far more


@dataclass(frozen=True)
class Cutting:
    """`grain` samples to a grain; `merged`: a worker may run several grains in one pass. `why` is for the log."""

    grain: int
    merged: bool
    why: str


def choose(grain: int | str, passes: str, global_batch: int, separate: str | None) -> Cutting:
    """Settle what the user left open. Pure. `separate` says why grains must run one by one, None if they need not."""
    merged = passes == "merged" or (passes == "auto" and separate is None)
    if isinstance(grain, int):
        size = min(grain, global_batch)
    elif merged:
        size = max(1, global_batch // _MERGED_GRAINS)
    else:
        pieces = -(-global_batch // _PASS_GRAIN)
        size = -(-global_batch // pieces)
    return Cutting(size, merged, separate or "nothing in the model looks at its batch or draws per batch")


def plan_passes(grains: Sequence[Grain], merged: bool, accumulate: int) -> list[tuple[Grain, ...]]:
    """Group a worker's grains into passes. Pure. Merged grains make `accumulate` passes of about equal size."""
    if not merged:
        return [(grain,) for grain in grains]
    count = min(accumulate, len(grains))
    borders = [len(grains) * at // count for at in range(count + 1)] if count else []
    return [tuple(grains[a:b]) for a, b in itertools.pairwise(borders)]


def why_separate(model: nn.Module, objective: Objective, parts: Sequence[Batch], both: Batch) -> str | None:
    """Say why grains of this model must run one by one, or None. Leaves model, gradients and generator as they were."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            return f"{name or 'the model'} ({type(module).__name__}) looks at its batch"
    generator = torch.default_generator.get_state()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        return _probe(model, objective, parts, both, buffers)
    finally:
        torch.default_generator.set_state(generator)
        for name, buffer in model.named_buffers():
            buffer.data.copy_(buffers[name])
        model.zero_grad(set_to_none=True)


def _probe(
    model: nn.Module, objective: Objective, parts: Sequence[Batch], both: Batch, buffers: dict[str, Tensor]
) -> str | None:
    model.train()
    before = torch.default_generator.get_state()
    whole_loss, whole = _gradient(model, objective, [both])
    if not torch.equal(before, torch.default_generator.get_state()):
        return "the model draws random numbers (dropout)"
    if any(not torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers()):
        return "the model changes its buffers"
    split_loss, split = _gradient(model, objective, parts)
    scale = max(abs(whole_loss), float(whole.norm()), 1e-12)
    difference = max(abs(whole_loss - split_loss), float((whole - split).norm()))
    if not difference <= _TOLERANCE * scale:
        return "the loss of two batches together is not the sum of their losses"
    return None


def _gradient(model: nn.Module, objective: Objective, batches: Sequence[Batch]) -> tuple[float, Tensor]:
    """The loss and the gradient of some batches, as sums."""
    model.zero_grad(set_to_none=True)
    total = 0.0
    for batch in batches:
        loss = objective(model, batch)
        loss.backward()
        total += float(loss.total.detach())
    grads = [p.grad.to_dense().flatten() for p in model.parameters() if p.grad is not None]
    return total, torch.cat(grads) if grads else torch.zeros(1)
