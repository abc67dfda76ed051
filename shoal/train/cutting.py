"""How big a grain is, and whether grains may share a pass: decided once a run, by looking at the model.

Where nothing in the model looks at its batch, and what it draws can be told apart by sample, several grains in one pass
give the same sums, and one big pass is quicker than many small ones. That is found out by trying: the loss and gradient
of two small batches must add up to those of both together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.core.grains import Grain
from shoal.strategies.drawing import DrawRules
from shoal.strategies.normalising import per_sample
from shoal.strategies.objective import Objective
from shoal.train.draws import NO_SUM, Few, compare, tell_apart

_PASS_GRAIN = 32  # samples to a grain, at most, where each has a pass of its own and the user states no grain
_FEWEST = 16  # samples that batch normalisation sees, at least, where the user states no grain
A_HANDFUL = 4  # workers that shall have work where the user has not announced how many there may be
_MERGED_GRAINS = 64  # grains in a global batch where their size costs nothing


@dataclass(frozen=True)
class Look:
    """What a trial has shown: why grains must run one by one, None if they need not; and how draws are told apart by
    sample, None where they cannot. `normed`: batch normalisation looks at them."""

    separate: str | None
    draws: DrawRules | None
    normed: bool = False


@dataclass(frozen=True)
class Cutting:
    """`grain` samples to a grain; `merged`: a worker may run several grains in one pass. `why` is for the log. `draws`
    says how what the model draws is told apart by sample; None: it is seeded by grain. `normed`: batch normalisation
    looks at grains."""

    grain: int
    merged: bool
    why: str
    draws: DrawRules | None = None
    normed: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What was chosen, by the names of settings."""
        passes, draws = "merged" if self.merged else "grain", "sample" if self.draws is not None else "grain"
        return {"grain": self.grain, "passes": passes, "draws": draws}

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "draws": self.draws.to_json() if self.draws is not None else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cutting:
        return cls(**{**data, "draws": DrawRules.from_json(data["draws"])})


def choose(grain: int | str, passes: str, global_batch: int, look: Look, announced: int = A_HANDFUL) -> Cutting:
    """Settle what the user left open, by what a `look` at the model has shown, so that as many workers as were
    `announced` have work. Pure: how many there are is no part of it."""
    merged = passes == "merged" or (passes == "auto" and look.separate is None)
    if isinstance(grain, int):
        size = min(grain, global_batch)
    elif merged:
        size = max(1, global_batch // _MERGED_GRAINS)
    else:
        size = _separate_grain(global_batch, announced, _FEWEST if look.normed else 1)
    apart = "what the model draws is told apart by sample, and " if look.draws is not None and look.draws.some else ""
    why = look.separate or f"{apart}nothing in the model looks at its batch"
    return Cutting(size, merged, why, look.draws, look.normed)


def _separate_grain(global_batch: int, announced: int, fewest: int) -> int:
    """The size of a grain that has a pass of its own: as many as were announced, none of fewer samples than `fewest`
    in a full batch, none of many more than is quick."""
    least, most = -(-global_batch // _PASS_GRAIN), global_batch // fewest
    wanted = max(least, min(announced, most))
    for pieces in itertools.chain(range(wanted, least - 1, -1), range(wanted + 1, most + 1)):
        size = -(-global_batch // pieces)
        if (global_batch - 1) % size + 1 >= fewest:
            return size
    return -(-global_batch // least)


def plan_passes(grains: Sequence[Grain], merged: bool, accumulate: int) -> list[tuple[Grain, ...]]:
    """Group a worker's grains into passes. Pure. Merged grains make `accumulate` passes of about equal size."""
    if not merged:
        return [(grain,) for grain in grains]
    count = min(accumulate, len(grains))
    borders = [len(grains) * at // count for at in range(count + 1)] if count else []
    return [tuple(grains[a:b]) for a, b in itertools.pairwise(borders)]


def look_at(model: nn.Module, objective: Objective, parts: Sequence[Few], both: Few, combined: bool = False) -> Look:
    """Try a few samples, in two groups of different size and together. Leaves model, gradients and generator as they
    were. `combined`: batch normalisation looks at the whole batch anyway, so it is no reason."""
    generator = torch.default_generator.get_state()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    modes = {part: part.training for part in model.modules()}
    try:
        model.train()
        return _look(model, objective, parts, both, combined)
    finally:
        for part, training in modes.items():
            part.training = training
        torch.default_generator.set_state(generator)
        _restore(model, buffers)
        model.zero_grad(set_to_none=True)


def _look(model: nn.Module, objective: Objective, parts: Sequence[Few], both: Few, combined: bool) -> Look:
    norm = None if combined else _looks_at_batch(model)
    moving = {
        id(own) for part in model.modules() if isinstance(part, _BatchNorm) for own in part.buffers(recurse=False)
    }
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if id(buffer) not in moving}
    with per_sample():  # what batch normalisation does is known: see what else there is
        draws = tell_apart(model, objective, parts, both)
        changed = any(name in before and not torch.equal(own, before[name]) for name, own in model.named_buffers())
        separate = norm or draws.why or ("the model changes its buffers" if changed else None)
        if separate is None and not draws.any:
            separate = None if compare(model, objective, parts, both, draws.loss) else NO_SUM
    return Look(separate, draws.rules if draws.any or separate is None else None, normed=norm is not None)


def has_batch_norm(model: nn.Module) -> bool:
    return _looks_at_batch(model) is not None


def _looks_at_batch(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            return f"{name or 'the model'} ({type(module).__name__}) looks at its batch"
    return None


def _restore(model: nn.Module, buffers: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.data.copy_(buffers[name])
