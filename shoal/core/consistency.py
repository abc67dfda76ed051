"""How far workers that share parameters may drift apart, as a value: `BSP()`, `SSP(staleness=4)`, `ASP()`.

A worker's *clock* counts the tasks it has committed. A consistency says whether a worker may begin its next task, given
its own clock and that of the slowest living worker. Written in a configuration as ``bsp``, ``ssp:4``, ``asp``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from shoal.core.errors import ConfigError
from shoal.core.registry import Registry


class Consistency(ABC):
    """Decides who may go on. A variant of one's own is registered in `consistencies` and says its `bound`."""

    @property
    @abstractmethod
    def bound(self) -> int | None:
        """By how many tasks a worker may be ahead of the slowest and still begin one; None: by any number."""

    @abstractmethod
    def __str__(self) -> str:
        """As `parse` reads it."""

    @classmethod
    @abstractmethod
    def from_argument(cls, argument: str | None) -> Self:
        """Make one from what stands after the colon, None without one; raises `ValueError` saying what to write."""

    def allows(self, clock: int, slowest: int) -> bool:
        """Whether a worker at `clock` may begin its next task while the slowest living one is at `slowest`."""
        return self.bound is None or clock <= slowest + self.bound


consistencies: Registry[type[Consistency]] = Registry("consistency")


@consistencies.add("bsp")
@dataclass(frozen=True)
class BSP(Consistency):
    """Bulk synchronous: nobody begins a task before all have committed as many as it has."""

    @property
    def bound(self) -> int:
        return 0

    def __str__(self) -> str:
        return "bsp"

    @classmethod
    def from_argument(cls, argument: str | None) -> Self:
        if argument is not None:
            raise ValueError("bsp takes no number: write bsp")
        return cls()


@consistencies.add("ssp")
@dataclass(frozen=True)
class SSP(Consistency):
    """Stale synchronous: a worker may be `staleness` tasks ahead of the slowest, and begin one more."""

    staleness: int

    def __post_init__(self) -> None:
        if isinstance(self.staleness, bool) or not isinstance(self.staleness, int) or self.staleness < 0:
            raise ConfigError(f"the staleness of SSP is {self.staleness!r}: give a whole number, 0 or more")

    @property
    def bound(self) -> int:
        return self.staleness

    def __str__(self) -> str:
        return f"ssp:{self.staleness}"

    @classmethod
    def from_argument(cls, argument: str | None) -> Self:
        if argument is None or not (argument.isascii() and argument.isdigit()):
            raise ValueError("ssp needs its staleness, a whole number of tasks: write ssp:4")
        return cls(int(argument))


@consistencies.add("asp")
@dataclass(frozen=True)
class ASP(Consistency):
    """Asynchronous: nobody waits for anybody."""

    @property
    def bound(self) -> None:
        return None

    def __str__(self) -> str:
        return "asp"

    @classmethod
    def from_argument(cls, argument: str | None) -> Self:
        if argument is not None:
            raise ValueError("asp takes no number: write asp")
        return cls()


def parse(text: str) -> Consistency:
    """Read ``bsp``, ``ssp:4`` or ``asp``; raises `ConfigError` naming what was wrong and what to write."""
    name, colon, argument = text.strip().lower().partition(":")
    kind = consistencies.get(name)
    try:
        return kind.from_argument(argument.strip() if colon else None)
    except ValueError as error:
        raise ConfigError(f"consistency {text!r} cannot be read: {error}") from None
