"""Things chosen by name: strategies, metrics, initialisations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from shoal.core.errors import ConfigError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to values; an unknown name is answered with the nearest known one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """Register the decorated value under `name`."""

        def register(value: T) -> T:
            assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
            self._entries[name] = value
            return value

        return register

    def get(self, name: str) -> T:
        """Return the value registered under `name`; raises `ConfigError` naming the nearest one."""
        try:
            return self._entries[name]
        except KeyError:
            raise ConfigError(f"unknown {self.kind} {name!r}: {nearest(name, self._entries)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: str) -> bool:
        return name in self._entries
