"""Checks of the fields of a message. A *check* takes what came over the wire and returns the value, or raises
`BadMessage`. Types are exact: True is no number, 1 no real number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Check = Callable[[Any], T]


class BadMessage(Exception):  # noqa: N818 - it names the thing, and is caught where messages are received
    """What came is not a message of ours. It is dropped."""


def anything(value: Any) -> Any:
    return value


def flag(value: Any) -> bool:
    if value is not True and value is not False:
        raise BadMessage("no flag")
    return bool(value)


def number(low: int, high: int) -> Check[int]:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadMessage(f"no number in {low}..{high}")
        return value

    return check


def real(low: float, high: float) -> Check[float]:
    def check(value: Any) -> float:
        if type(value) is not float or not low <= value <= high:  # a NaN fails both comparisons
            raise BadMessage(f"no number in {low}..{high}")
        return value

    return check


def text(most: int, least: int = 0) -> Check[str]:
    """Printable text in one line, of `least` to `most` characters."""

    def check(value: Any) -> str:
        if type(value) is not str or not least <= len(value) <= most or not (value.isprintable()):
            raise BadMessage(f"no text of {least}..{most} characters")
        return value

    return check


def octets(most: int) -> Check[bytes]:
    def check(value: Any) -> bytes:
        if type(value) is not bytes or len(value) > most:
            raise BadMessage(f"no bytes, at most {most}")
        return value

    return check


def choice(known: tuple[str, ...]) -> Check[str]:
    def check(value: Any) -> str:
        if type(value) is not str or value not in known:
            raise BadMessage("none of the known words")
        return value

    return check


def optional(inner: Check[T]) -> Check[T | None]:
    return lambda value: None if value is None else inner(value)


def array(inner: Check[T], most: int) -> Check[tuple[T, ...]]:
    def check(value: Any) -> tuple[T, ...]:
        if type(value) is not list or len(value) > most:
            raise BadMessage(f"no list of at most {most}")
        return tuple(inner(one) for one in value)

    return check


def mapping(key: Check[str], inner: Check[T], most: int) -> Check[dict[str, T]]:
    def check(value: Any) -> dict[str, T]:
        if type(value) is not dict or len(value) > most:
            raise BadMessage(f"no mapping of at most {most}")
        return {key(name): inner(one) for name, one in value.items()}

    return check


def record(made: Callable[..., T], **checks: Check[Any]) -> Check[T]:
    """A dataclass, sent as a mapping of all its fields and no others."""
    assert {field.name for field in dataclasses.fields(made)} == set(checks), made  # type: ignore[arg-type]

    def check(value: Any) -> T:
        if type(value) is not dict or value.keys() != checks.keys():
            raise BadMessage(f"not the fields of {made}")
        return made(**{name: one(value[name]) for name, one in checks.items()})

    return check
