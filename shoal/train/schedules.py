"""Learning rates over a run, as values: what multiplies the optimizer's initial rate at a position.

A schedule is a pure function of where training is. It keeps no state, so a resumed run and a run on another
number of workers take the same rates, and nothing of it is saved. Lengths are written as everywhere:
``"500 steps"``, ``"2 epochs"``, ``"100000 samples"``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shoal.core.cursor import Cursor
from shoal.core.errors import ConfigError
from shoal.core.length import Length

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

# a position in epochs is a sum of fractions; this much below a whole one is the whole one
_ROUNDING = 1e-9


class Schedule(ABC):
    """What multiplies the initial learning rates. A frozen value; write your own by giving `factor`."""

    @abstractmethod
    def factor(self, cursor: Cursor, steps_per_epoch: int) -> float:
        """The multiplier for the step about to be taken at `cursor`: a pure function."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The initial learning rate throughout."""

    def factor(self, cursor: Cursor, steps_per_epoch: int) -> float:
        return 1.0


@dataclass(frozen=True)
class _Decay(Schedule):
    """Rise from 0 to 1 over `warmup`, then fall to `floor` until `total` (warm-up included), and stay there.

    With a warm-up the very first step is taken at rate 0.
    """

    total: Length | str
    warmup: Length | str | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        total = _parse(self, "total", self.total)
        object.__setattr__(self, "total", total)
        if not 0.0 <= self.floor <= 1.0:
            raise ConfigError(
                f"{_name(self)}(floor={self.floor}): give the share of the initial rate that is left "
                "at the end, from 0 to 1"
            )
        if self.warmup is None:
            return
        warmup = _parse(self, "warmup", self.warmup)
        object.__setattr__(self, "warmup", warmup)
        written = f"{_name(self)}(total={str(total)!r}, warmup={str(warmup)!r})"
        if (total.unit == "samples") != (warmup.unit == "samples"):
            raise ConfigError(f"{written}: state both in samples, or neither")
        if total.unit == warmup.unit and warmup.amount >= total.amount:
            raise ConfigError(f"{written}: the warm-up is part of the total and must be shorter")

    def factor(self, cursor: Cursor, steps_per_epoch: int) -> float:
        total = Length.parse(self.total)
        done = total.elapsed(cursor, steps_per_epoch)
        rising = 0.0  # the warm-up's share of the total
        if self.warmup is not None:
            warmup = Length.parse(self.warmup)
            risen = warmup.elapsed(cursor, steps_per_epoch)
            if risen < 1.0 - _ROUNDING:
                return risen
            rising = _common(warmup, steps_per_epoch) / _common(total, steps_per_epoch)
        if done >= 1.0 - _ROUNDING or rising >= 1.0:
            return self.floor
        return self.floor + (1.0 - self.floor) * self._shape((done - rising) / (1.0 - rising))

    def _shape(self, fraction: float) -> float:
        """From 1 at 0 to 0 at 1."""
        raise NotImplementedError


@dataclass(frozen=True)
class Cosine(_Decay):
    """Half a cosine from the initial rate down to `floor` times it at `total`.

    ``Cosine("10 epochs", warmup="500 steps", floor=0.01)``: `warmup` is part of `total`, a line up from 0.
    """

    def _shape(self, fraction: float) -> float:
        return (1.0 + math.cos(math.pi * fraction)) / 2.0


@dataclass(frozen=True)
class Linear(_Decay):
    """A straight line from the initial rate down to `floor` times it at `total`; `warmup` as in `Cosine`."""

    def _shape(self, fraction: float) -> float:
        return 1.0 - fraction


@dataclass(frozen=True)
class Steps(Schedule):
    """Multiply the rate by `by` as each length in `at` passes: ``Steps(["30 epochs", "60 epochs"])``."""

    at: Sequence[Length | str]
    by: float = 0.1
    warmup: Length | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.at, str | Length) or not self.at:
            raise ConfigError(f"Steps(at={self.at!r}): give a list of lengths such as ['30 epochs', '60 epochs']")
        object.__setattr__(self, "at", tuple(_parse(self, "at", length) for length in self.at))
        if not (math.isfinite(self.by) and self.by > 0):
            raise ConfigError(f"Steps(by={self.by}): must be a number above 0, such as 0.1")
        if self.warmup is not None:
            object.__setattr__(self, "warmup", _parse(self, "warmup", self.warmup))

    def factor(self, cursor: Cursor, steps_per_epoch: int) -> float:
        risen = 1.0
        if self.warmup is not None:
            risen = min(1.0, Length.parse(self.warmup).elapsed(cursor, steps_per_epoch))
        passed = sum(Length.parse(at).elapsed(cursor, steps_per_epoch) >= 1.0 - _ROUNDING for at in self.at)
        return risen * self.by**passed


@dataclass(frozen=True)
class Function(Schedule):
    """A rate of your own: `function` gets the cursor and returns the multiplier. Keep it pure."""

    function: Callable[[Cursor], float]

    def factor(self, cursor: Cursor, steps_per_epoch: int) -> float:
        value = float(self.function(cursor))
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(
                f"the function of the learning-rate schedule returned {value} at step {cursor.step}: "
                "it must return a number that is 0 or more"
            )
        return value


@dataclass(frozen=True)
class TorchSchedule:
    """A scheduler of `torch.optim.lr_scheduler` for the run's optimizer, moved on after each step or epoch.

    ``TorchSchedule(lambda optimizer: StepLR(optimizer, 30), every="epoch")``. No `Schedule`: it has state.
    """

    factory: Callable[[Optimizer], LRScheduler]
    every: Literal["step", "epoch"] = "step"

    def __post_init__(self) -> None:
        if self.every not in ("step", "epoch"):
            raise ConfigError(f"TorchSchedule(every={self.every!r}): must be 'step' or 'epoch'")
        if not callable(self.factory):
            raise ConfigError(
                f"TorchSchedule(factory={self.factory!r}): give a function that makes the scheduler from an "
                "optimizer, such as `lambda optimizer: StepLR(optimizer, 30)`"
            )


def _name(schedule: object) -> str:
    return type(schedule).__name__


def _parse(schedule: Schedule, argument: str, text: object) -> Length:
    try:
        return Length.parse(text)
    except ValueError as error:
        raise ConfigError(f"{_name(schedule)}({argument}={text!r}): {error}") from None


def _common(length: Length, steps_per_epoch: int) -> float:
    """In steps; samples stay samples, as they only ever meet samples."""
    return length.amount * (steps_per_epoch if length.unit == "epochs" else 1)
