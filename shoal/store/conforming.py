"""Whether a value is what a type says: what arrives over a wire is looked at before it is believed."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin


def conforms(value: Any, hint: Any) -> bool:
    """Whether `value` is a `hint`: a class, a union, a literal, or a tuple, dict or array of such. An int is a float,
    too."""
    if hint is Any:
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(conforms(value, one) for one in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and _tuple_conforms(value, arguments)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            conforms(key, arguments[0]) and conforms(one, arguments[1]) for key, one in value.items()
        )
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint if origin is None else origin)  # what an array holds is looked at where it is used


def _tuple_conforms(value: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    if arguments[1:] == (...,):
        return all(conforms(one, arguments[0]) for one in value)
    return len(value) == len(arguments) and all(map(conforms, value, arguments))
