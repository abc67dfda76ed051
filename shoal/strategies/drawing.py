"""What a model draws in training, told apart by sample: dropout and its kin, wherever they are called.

PyTorch draws the masks of `nn.Dropout`, `F.dropout`, attention and DropPath by two operations on a tensor, `bernoulli_`
and `uniform_`. While a pass runs they are ours (replaced in PyTorch's dispatcher, for this thread only), and fill the
part of each sample by `shoal.core.sample_draws`. Which dimension counts samples was found out by a trial, module by
module: `DrawRules`. What does not change with the number of samples is drawn once for the whole step.

The number of a call is drawn from PyTorch's generator, which begins each pass of a step in the same state. So
activation checkpointing, which puts the generator back for its second forward, finds the same numbers again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError
from shoal.core.sample_draws import Samples, fill_kept, fill_uniform, row_keys

OUTSIDE = "(loss)"  # where something is drawn by no module
COMMON = -1  # instead of a dimension: the same for all samples of a step
_NUMPY = (torch.float32, torch.float64)


@dataclass(frozen=True)
class DrawRules:
    """Which dimension of what a module draws counts samples, by the module's name and the number of dimensions.
    `alone`: nothing else moves the generator."""

    dims: Mapping[tuple[str, int], int]
    alone: bool = True

    @property
    def some(self) -> bool:
        """Whether the model draws at all."""
        return bool(self.dims) or not self.alone

    def to_json(self) -> dict[str, Any]:
        return {"dims": [[*key, dim] for key, dim in self.dims.items()], "alone": self.alone}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> DrawRules | None:
        if data is None:
            return None
        return cls({(str(name), int(count)): int(dim) for name, count, dim in data["dims"]}, bool(data["alone"]))


class Drawn:
    """Something that is asked whenever the model draws. Returns whether it has filled `tensor`: with numbers of
    ``[0, 1)``, or where `keep` is given with 1 by this probability and 0 else."""

    def fill(self, tensor: Tensor, keep: float | None) -> bool:
        raise NotImplementedError


class SampleDrawing(Drawn):
    """Draws for the samples of a pass of `module`, by `rules`. Of one thread."""

    def __init__(self, module: nn.Module, rules: DrawRules) -> None:
        self._rules, self._names = rules, names_of(module)
        self._samples: Samples = np.empty(0, dtype=np.int64)
        self._dims: dict[int, int] = {}  # by the number of a call: a second forward has no module to be known by
        self._dispatch = replaced_kernels() if rules.some else None
        self._cell = torch.empty((), dtype=torch.int64)
        self._replay = torch.Generator()
        self._untouched = self._replay.manual_seed(0).get_state()

    @contextlib.contextmanager
    def forward(self, samples: Samples, seed: int) -> Iterator[None]:
        """A pass over `samples` goes forward; `seed` is the same for all passes of a step. Raises `ConfigError` where
        the model draws what the trial has not shown."""
        if not self._rules.some:  # then nothing is left to do but to see that this is so
            torch.default_generator.manual_seed(0)
            yield
            self._check(self._untouched)
            return
        self._samples = samples
        self._dims.clear()
        torch.default_generator.manual_seed(seed)
        with asked(self):
            yield
        if self._rules.alone:
            self._check(self.untouched(seed))

    def untouched(self, seed: int) -> Tensor:
        """The generator's state after the last pass went forward from `seed`, if only `fill` has moved it."""
        self._replay.manual_seed(seed)
        for _ in self._dims:
            self._cell.random_(generator=self._replay)
        return self._replay.get_state()

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """The same pass goes backward: parts of it may go forward again, from the generator's state of then."""
        with asked(self) if self._rules.some else contextlib.nullcontext():
            yield

    def fill(self, tensor: Tensor, keep: float | None) -> bool:
        call = int(self._cell.random_())
        dim = self._dims.get(call)
        if dim is None:
            dim = self._dims[call] = self._rule(tensor)
        if dim == COMMON:
            samples, view = np.zeros(1, dtype=np.int64), tensor.unsqueeze(0)
        else:
            samples, shape = self._samples, tensor.shape
            each = shape[dim] // len(samples)
            view = tensor.view(*shape[:dim], len(samples), each, *shape[dim + 1 :]).movedim(dim, 0)
        fill_by_sample(view, call, samples, keep)
        return True

    def _rule(self, tensor: Tensor) -> int:
        name = running_module(self._names)
        dim = self._rules.dims.get((name, tensor.dim()))
        if dim is None or (dim != COMMON and tensor.shape[dim] % len(self._samples)):
            raise _unforeseen(name, f"numbers of shape {list(tensor.shape)} for {len(self._samples)} samples")
        return dim

    def _check(self, state: Tensor) -> None:
        """Nobody but `fill` has moved the generator, which must be in `state`."""
        if not torch.equal(state, torch.default_generator.get_state()):
            raise _unforeseen("", "random numbers of its own")


def _unforeseen(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"{label(name)} draws {what}, which the trial before the first step has not shown, so they cannot be told "
        "apart by sample: use draws=grain"
    )


def fill_by_sample(view: Tensor, call: int, samples: Samples, keep: float | None) -> None:
    """Fill `view`, whose first dimension counts `samples`."""
    shape = tuple(view.shape) if view.dim() > 1 else (*view.shape, 1)
    keys = row_keys(call, samples, shape[1:-1])
    plain = view.dtype in _NUMPY and view.is_contiguous()
    if plain:
        out = view.detach().numpy().reshape(-1, shape[-1])
    else:
        kind = np.bool_ if keep is not None else np.float64 if view.dtype == torch.float64 else np.float32
        out = np.empty((len(keys), shape[-1]), dtype=kind)
    if keep is not None:
        fill_kept(out, keys, keep)
    else:
        fill_uniform(out, keys)
    if not plain:
        view.copy_(torch.from_numpy(out).view(view.shape))


# ---- which module draws


def names_of(module: nn.Module) -> dict[int, str]:
    """The names of a module's parts, by `id`."""
    return {id(part): name for name, part in module.named_modules()}


def running_module(names: Mapping[int, str]) -> str:
    """The innermost of the modules `names` whose method runs now; `OUTSIDE` if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            name = names.get(id(frame.f_locals.get("self")))
            if name is not None:
                return name
        frame = frame.f_back
    return OUTSIDE


def label(name: str) -> str:
    """A module's name, for people."""
    return "the loss" if name == OUTSIDE else name or "the model"


# ---- taking the place of PyTorch's own kernels


_asked = threading.local()


@contextlib.contextmanager
def asked(drawn: Drawn) -> Iterator[None]:
    """While this lasts, what this thread draws is asked of `drawn` first."""
    before = getattr(_asked, "drawn", None)
    _asked.drawn = drawn
    try:
        yield
    finally:
        _asked.drawn = before


def can_replace_kernels() -> bool:
    """Whether this PyTorch lets us do so and still call its own (2.10 does)."""
    return hasattr(torch.library, "get_kernel")


class _Replaced:
    """As long as this object lives, `bernoulli_` and `uniform_` on a processor ask first."""

    def __init__(self) -> None:
        own = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in ("bernoulli_.float", "uniform_")}

        def bernoulli_(keys: Any, tensor: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
            drawn: Drawn | None = getattr(_asked, "drawn", None)
            if drawn is None or generator is not None or not drawn.fill(tensor, p):
                own["bernoulli_.float"].call_boxed(keys, tensor, p, generator=generator)
            return tensor

        def uniform_(keys: Any, tensor: Tensor, low: float = 0, high: float = 1, *, generator: Any = None) -> Tensor:
            drawn: Drawn | None = getattr(_asked, "drawn", None)
            if drawn is None or generator is not None or not drawn.fill(tensor, None):
                own["uniform_"].call_boxed(keys, tensor, low, high, generator=generator)
            elif (low, high) != (0, 1):
                tensor.mul_(high - low).add_(low)
            return tensor

        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*[Oo]verrid.*")
            self._library.impl("bernoulli_.float", bernoulli_, "CPU", with_keyset=True)  # type: ignore[no-untyped-call]
            self._library.impl("uniform_", uniform_, "CPU", with_keyset=True)  # type: ignore[no-untyped-call]


_replaced: list[weakref.ref[_Replaced]] = []  # the last one


def replaced_kernels() -> object:
    """The kernels are replaced as long as somebody holds what this returns."""
    held = _replaced[0]() if _replaced else None
    if held is None:
        held = _Replaced()
        _replaced[:] = [weakref.ref(held)]
    return held
