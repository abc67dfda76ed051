"""Whether what a model draws can be told apart by sample, and how: found out by trying it on a few samples.

Two groups of samples of different size go through the model, and both together: a dimension of what is drawn that grows
with them counts samples. Then it is put to the proof: with draws told apart by these rules, the losses and gradients of
the two groups must add up to those of both together, and nothing else may draw another number of values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.core.sample_draws import Samples
from shoal.strategies.drawing import (
    COMMON,
    OUTSIDE,
    Drawn,
    DrawRules,
    SampleDrawing,
    asked,
    can_replace_kernels,
    label,
    names_of,
    replaced_kernels,
    running_module,
)
from shoal.strategies.objective import Batch, LossSum, Objective

_TOLERANCE = 1e-3  # rounding differs by 1e-6 or so, draws of another sample by far more
_NOISE = 1e-5  # of the whole gradient: what is smaller than that in one parameter may be rounding
_SEED = 20


@dataclass(frozen=True)
class Few:
    """Some samples that a trial is made with: their numbers, and the batch that they make."""

    samples: Samples
    batch: Batch


@dataclass(frozen=True)
class Draws:
    """What was found out. `rules` is None where draws cannot be told apart by sample; `why` says so then, and
    `any` whether the model draws at all. `loss`: where it does not, that of both groups together, whose pass need not
    go forward again: every one of a large model costs seconds."""

    any: bool
    rules: DrawRules | None
    why: str | None = None
    loss: LossSum | None = None


@dataclass(frozen=True)
class _Seen:
    """A module has drawn a tensor of this shape."""

    name: str
    shape: tuple[int, ...]


class _Watching(Drawn):
    """Notes what is drawn and by whom, and leaves the drawing to PyTorch."""

    def __init__(self, model: nn.Module) -> None:
        self._names, self.seen = names_of(model), list[_Seen]()

    def fill(self, tensor: Tensor, keep: float | None) -> bool:
        self.seen.append(_Seen(running_module(self._names), tuple(tensor.shape)))
        return False


class _Still(Drawn):
    """Fills with what is not random at all, so that only other draws move the generator."""

    def fill(self, tensor: Tensor, keep: float | None) -> bool:
        tensor.fill_(1.0 if keep is not None else 0.5)
        return True


def tell_apart(model: nn.Module, objective: Objective, parts: Sequence[Few], both: Few) -> Draws:
    """Find out how the model draws in training. Batch normalisation must not look at its batch meanwhile. Leaves
    buffers and generator changed."""
    if not can_replace_kernels():
        return _without_kernels(model, objective, both)
    held = replaced_kernels()
    seen, moved, loss = _watch(model, objective, both)
    if not seen and not moved:
        return Draws(any=False, rules=DrawRules({}), loss=loss)
    del loss  # and all that its pass has kept
    if len(parts) < 2:
        return Draws(any=True, rules=None, why="the model draws random numbers, and there is one sample to try")
    fewer = parts[0]  # one other number of samples tells: what follows is put to the proof with all of them
    dims = _dims(model, [seen, _watch(model, objective, fewer)[0]], [len(few.samples) for few in (both, fewer)])
    if isinstance(dims, str):
        return Draws(any=True, rules=None, why=dims)
    why, alone = _disproof(model, objective, parts, both, DrawRules(dims, alone=False))
    del held
    return Draws(any=True, rules=DrawRules(dims, alone) if why is None else None, why=why)


def _without_kernels(model: nn.Module, objective: Objective, both: Few) -> Draws:
    torch.default_generator.manual_seed(_SEED)
    before = torch.default_generator.get_state()
    objective(model, both.batch)
    if torch.equal(before, torch.default_generator.get_state()):
        return Draws(any=False, rules=None)
    return Draws(any=True, rules=None, why="the model draws random numbers, and this PyTorch is older than 2.10")


def _watch(model: nn.Module, objective: Objective, few: Few) -> tuple[list[_Seen], bool, LossSum]:
    """What is drawn in a pass over `few`, whether the generator has moved, and the loss."""
    watching = _Watching(model)
    torch.default_generator.manual_seed(_SEED)
    before = torch.default_generator.get_state()
    with asked(watching):
        loss = objective(model, few.batch)
    return watching.seen, not torch.equal(before, torch.default_generator.get_state()), loss


def _dims(model: nn.Module, runs: list[list[_Seen]], counts: list[int]) -> dict[tuple[str, int], int] | str:
    """Which dimension counts samples, by module and number of dimensions, or why that cannot be said. `runs` are passes
    over `counts` samples."""
    modules = dict(model.named_modules())
    found: dict[tuple[str, int], set[int]] = {}
    if len({len(seen) for seen in runs}) > 1:
        return "the number of its draws depends on its batch"
    for drawn in zip(*runs, strict=True):
        name, shapes = drawn[0].name, [one.shape for one in drawn]
        who = _who(model, name)
        if isinstance(modules.get(name), nn.RNNBase):
            return f"{who} draws within its layers (dropout), which cannot be told apart by sample"
        if len({(one.name, len(one.shape)) for one in drawn}) > 1:
            return f"{who} draws in another order with other samples"
        key, possible = (name, len(shapes[0])), _counting(shapes, counts)
        found[key] = found.get(key, possible) & possible
        if len(found[key]) != 1:
            return f"{who} draws random numbers of shape {list(shapes[0])} for {counts[0]} samples, which {_CANNOT}"
    return {key: possible.pop() for key, possible in found.items()}


_CANNOT = "cannot be told apart by sample"


def _counting(shapes: list[tuple[int, ...]], counts: list[int]) -> set[int]:
    """The dimensions that may count samples; `COMMON` where the shape is always the same."""
    if len(set(shapes)) == 1:
        return {COMMON}
    sizes = zip(*shapes, strict=True)
    return {dim for dim, of in enumerate(sizes) if len({size / n for size, n in zip(of, counts, strict=True)}) == 1}


def _who(model: nn.Module, name: str) -> str:
    part = dict(model.named_modules()).get(name)
    return label(name) if part is None else f"{label(name)} ({type(part).__name__})"


def _disproof(
    model: nn.Module, objective: Objective, parts: Sequence[Few], both: Few, rules: DrawRules
) -> tuple[str | None, bool]:
    """Why draws are not told apart by `rules`, None if they are; and whether nothing else moves the generator."""
    drawing = SampleDrawing(model, rules)
    model.zero_grad(set_to_none=True)
    whole = Whole.of(model, _add_up(model, objective, [both], drawing))
    alone = torch.equal(whole.states[0], drawing.untouched(_SEED))
    halves = _add_up(model, objective, parts, drawing)
    if any(not torch.equal(whole.states[0], state) for state in halves.states):
        culprit = _foreign(model, objective, both) or ""
        return f"{_who(model, culprit)} draws random numbers of its own, which {_CANNOT}", alone
    if whole.equals(model, halves):
        return None, alone
    with asked(_Still()):
        draws_are_to_blame = compare(model, objective, parts, both)
    if draws_are_to_blame:
        return f"{_who(model, next(iter(rules.dims))[0])} draws random numbers, which {_CANNOT}", alone
    return NO_SUM, alone


NO_SUM = "the loss of two batches together is not the sum of their losses"


@dataclass(frozen=True)
class Added:
    """The loss of some batches as a sum, and the generator's state after each. Their gradient is in the parameters."""

    loss: float
    states: Sequence[Tensor]


@dataclass(frozen=True)
class Whole:
    """One batch, to be compared with its parts. Its gradient stands in the parameters with the other sign, so what the
    parts add must leave nothing: a second gradient is never held. `norms` are its own, by parameter."""

    loss: float
    norms: Sequence[float]
    states: Sequence[Tensor]

    @classmethod
    def of(cls, model: nn.Module, added: Added) -> Whole:
        """To be called when the batch, and no other, has gone backward."""
        norms = list[float]()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = -parameter.grad.to_dense()  # not in place: two may share their memory
            norms.append(_norm(parameter))
        return cls(added.loss, norms, added.states)

    def equals(self, model: nn.Module, parts: Added) -> bool:
        """Whether the two differ by no more than rounding, in each parameter. Takes the gradient away."""
        whole = math.hypot(*self.norms)
        floor = _NOISE * whole + 1e-12
        rests = [_norm(parameter) for parameter in model.parameters()]
        model.zero_grad(set_to_none=True)
        if not abs(self.loss - parts.loss) <= _TOLERANCE * max(abs(self.loss), whole, 1e-9):
            return False
        return all(rest <= _TOLERANCE * norm + floor for rest, norm in zip(rests, self.norms, strict=True))


def _norm(parameter: Tensor) -> float:
    return float(parameter.grad.to_dense().norm()) if parameter.grad is not None else 0.0


def _add_up(model: nn.Module, objective: Objective, given: Sequence[Few], drawing: SampleDrawing) -> Added:
    """With draws by `drawing`."""
    return add_up(model, objective, given, lambda few: drawing.forward(few.samples, _SEED), drawing.backward)


def add_up(
    model: nn.Module,
    objective: Objective,
    given: Sequence[Few],
    forward: Callable[[Few], AbstractContextManager[None]] = lambda few: contextlib.nullcontext(),
    backward: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> Added:
    """Run the batches of `given` forward and backward, each within these. Adds to the gradient that there is."""
    total, states = 0.0, list[Tensor]()
    for few in given:
        with forward(few):
            loss = objective(model, few.batch)
        states.append(torch.default_generator.get_state())
        with backward():
            loss.backward()
        total += float(loss.total.detach())
        del loss  # and all that the pass has kept, before the next one
    return Added(total, states)


def compare(
    model: nn.Module, objective: Objective, parts: Sequence[Few], both: Few, loss: LossSum | None = None
) -> bool:
    """Whether the losses and gradients of `parts` add up to those of `both`, which may have gone forward already."""
    model.zero_grad(set_to_none=True)
    if loss is None:
        whole = add_up(model, objective, [both])
    else:
        loss.backward()
        whole = Added(float(loss.total.detach()), [])
    return Whole.of(model, whole).equals(model, add_up(model, objective, parts))


def _foreign(model: nn.Module, objective: Objective, few: Few) -> str | None:
    """The name of the innermost module that draws in another way than by what can be told apart; None without one."""
    open_states, found = list[Tensor](), list[str]()

    def enter(part: nn.Module, given: object) -> None:
        open_states.append(torch.default_generator.get_state())

    def leave(name: str, state: Tensor) -> None:
        if not found and not torch.equal(state, torch.default_generator.get_state()):
            found.append(name)

    hooks = []
    for name, part in model.named_modules():
        hooks.append(part.register_forward_pre_hook(enter))
        hooks.append(part.register_forward_hook(lambda *given, name=name: leave(name, open_states.pop())))
    torch.default_generator.manual_seed(_SEED)
    before = torch.default_generator.get_state()
    try:
        with asked(_Still()):
            objective(model, few.batch)
    finally:
        for hook in hooks:
            hook.remove()
    leave(OUTSIDE, before)
    return found[0] if found else None
