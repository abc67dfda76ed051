"""What a server does with what is pushed: the interface of updaters."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ConfigError, nearest
from shoal.core.registry import Registry

Array = npt.NDArray[Any]
State = dict[str, Array]


class Updater(ABC):
    """Applies an array to values, in place. Frozen: what it remembers between updates lies in `state`.

    A subclass is a frozen dataclass whose fields are its options; registered in `updaters`, it is chosen by name. It
    must be a function of its arguments alone, so that a backup computes the same bytes.
    """

    rate: float = 1.0  # used where none is given
    looks_at_whole: ClassVar[bool] = False  # its keys must not be cut (`whole=True`)
    only_floats: ClassVar[bool] = True

    @abstractmethod
    def update(self, values: Array, gradient: Array, state: State, rate: float, rows: Array | None = None) -> None:
        """Change `values` and `state` in place; `gradient` has their dtype, may be read-only and is left as it is.

        Without `rows`, `gradient` has the shape of `values`. With it, `gradient` holds one row of `values` for each of
        `rows` (ascending, each once), and only those rows of values and of the state may be read or written. Arrays in
        `state` are the updater's: it makes them when it first needs them, under names of its own.
        """


updaters: Registry[type[Updater]] = Registry("updater")


def make_updater(name: str, options: Mapping[str, Any]) -> Updater:
    """The updater registered as `name` with these options; raises `ConfigError` naming the option that is wrong."""
    kind = updaters.get(name)
    known = inspect.signature(kind).parameters
    for option in options:
        if option not in known:
            raise ConfigError(f"updater {name!r} has no option {option!r}: {nearest(option, known)}")
    return kind(**options)


def check_option(updater: str, option: str, value: float, least: float, below: float = float("inf")) -> None:
    """Raise `ConfigError` unless ``least <= value < below``."""
    if not least <= value < below:
        span = f"{least:g} or more" if below == float("inf") else f"at least {least:g} and less than {below:g}"
        raise ConfigError(f"option {option!r} of updater {updater!r} is {value!r}: give a number, {span}")


def zeros(values: Array) -> Array:
    """Zeros of the shape and dtype of `values`. Unlike `np.zeros_like`, it takes no memory before it is written to,
    which is what a large table needs of which few rows are ever touched."""
    return np.zeros(values.shape, values.dtype)
