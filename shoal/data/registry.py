"""Data sets by name: those that come with Shoal, and those that a program registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ConfigError, nearest

Load = Callable[[str], Any]  # a split, e.g. "train", to whatever a Trainer takes


@dataclass(frozen=True)
class Named:
    """`load` gives one of `splits`."""

    name: str
    splits: tuple[str, ...]
    load: Load


_DATA_SETS: dict[str, Named] = {}
_BUILT_IN = ("digits", "cifar10", "mnist", "fashion-mnist")


def register(name: str, splits: Iterable[str] = ("train", "test")) -> Callable[[Load], Load]:
    """Make the decorated function, which is given the name of a split and returns its data, a data set that
    `shoal.data.open` knows by `name`. Registering a name again replaces it, as notebooks do; built-in ones stay."""
    if name in _BUILT_IN:
        raise ConfigError(f"the name {name!r} is that of a built-in data set: choose another")
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise ConfigError(f"the name {name!r} of a data set must be of letters, digits, '-', '_' and '.'")
    return _adding(name, tuple(splits))


def named(name: str) -> Named:
    """Raises `ConfigError` that names the nearest one."""
    _add_built_in()
    try:
        return _DATA_SETS[name]
    except KeyError:
        raise ConfigError(
            f"there is no data set {name!r} and no such file: {nearest(name, _DATA_SETS)}. Others are registered with "
            "@shoal.data.register(name)"
        ) from None


def is_named(name: str) -> bool:
    _add_built_in()
    return name in _DATA_SETS


def load_split(found: Named, split: str) -> Any:
    """Raises `ConfigError` that names the splits there are."""
    if split not in found.splits:
        raise ConfigError(f"the data set {found.name!r} has no split {split!r}: {nearest(split, found.splits)}")
    return found.load(split)


def _adding(name: str, splits: tuple[str, ...]) -> Callable[[Load], Load]:
    def add(load: Load) -> Load:
        _DATA_SETS[name] = Named(name, splits, load)
        return load

    return add


def _add_built_in() -> None:
    if "digits" in _DATA_SETS:
        return
    from shoal.data.handwritten import digits
    from shoal.data.pictures import cifar10, fashion_mnist, mnist

    for name, load in zip(_BUILT_IN, (digits, cifar10, mnist, fashion_mnist), strict=True):
        _adding(name, ("train", "test"))(load)
