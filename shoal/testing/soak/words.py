"""Frozen values as words and back: ``batch=7 norm=group``. What is as usual is left out."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from shoal.core.errors import ConfigError, nearest

Value = TypeVar("Value")


def to_words(value: Any) -> str:
    """The fields of a frozen dataclass that are not at their default, in their order."""
    parts = []
    for field in fields(value):
        held = getattr(value, field.name)
        if held != default_of(field):
            parts.append(f"{field.name}={_write(held)}")
    return " ".join(parts)


def from_words(kind: type[Value], text: str) -> Value:
    """What `to_words` has written. Raises `ConfigError` for what it cannot have written."""
    hints = _hints(kind)
    given: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or name not in hints:
            raise ConfigError(f"{word!r} is no part of a {kind.__name__.lower()}: {nearest(name, hints)}")
        try:
            given[name] = _read(hints[name], value)
        except ValueError:
            raise ConfigError(f"{word!r}: {value!r} is no {name} of a {kind.__name__.lower()}") from None
    return kind(**given)


def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def default_of(field: Field[Any]) -> Any:
    """What a field holds where nothing is said."""
    return field.default if field.default is not MISSING else MISSING


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(_write(one) for one in value) or "-"
    return str(value)


def _read(hint: Any, text: str) -> Any:
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return tuple(_read(inner, part) for part in text.split(",")) if text != "-" else ()
    if typing.get_origin(hint) is typing.Literal:
        if text not in typing.get_args(hint):
            raise ValueError(text)
        return text
    if hint is bool:
        if text not in ("yes", "no"):
            raise ValueError(text)
        return text == "yes"
    assert not isinstance(hint, types.UnionType)
    return hint(text)
