"""Operations and answers as plain data and a list of arrays, for wires and disks. Nothing is pickled."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ShoalError
from shoal.store import answers, keys, operations
from shoal.store.conforming import conforms

_KIND, _ARRAY, _BYTES, _MAP = "kind", "array", "bytes", "map"  # the one key by which data that stands for more is known


class PackingError(ShoalError):
    """What arrived is neither an operation nor an answer, or what is to be sent is made of something else."""


def _kinds() -> dict[str, type]:
    """Every value that may be packed, by name: the dataclasses of keys, operations and answers."""
    return {
        name: kind
        for module in (keys, operations, answers)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    }


_KINDS = _kinds()
_FIELDS = {name: tuple(field.name for field in dataclasses.fields(kind)) for name, kind in _KINDS.items()}


def pack(value: Any) -> tuple[Any, list[npt.NDArray[Any]]]:
    """Return `value` (an operation, an answer, or a tuple, list or dict of such) as data that JSON and msgpack can
    hold, and its arrays, not copied; bytes become uint8 arrays."""
    arrays: list[npt.NDArray[Any]] = []
    return _pack(value, arrays), arrays


def _pack(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_pack(one, arrays) for one in value]
    if isinstance(value, np.ndarray | bytes):
        arrays.append(value if isinstance(value, np.ndarray) else np.frombuffer(value, np.uint8))
        return {_ARRAY if isinstance(value, np.ndarray) else _BYTES: len(arrays) - 1}
    if isinstance(value, dict):
        return {_MAP: [[_pack(key, arrays), _pack(one, arrays)] for key, one in value.items()]}
    name = type(value).__name__
    if _KINDS.get(name) is not type(value):
        raise PackingError(f"{value!r} is no operation, no answer and no part of one")
    return {_KIND: name} | {field: _pack(getattr(value, field), arrays) for field in _FIELDS[name]}


def unpack(data: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    """The value that was packed (lists come back as tuples); raises `PackingError` for anything else."""
    try:
        return _unpack(data, arrays)
    except PackingError:
        raise
    except Exception as error:
        raise PackingError(f"what arrived cannot be read: {type(error).__name__}: {error}") from error


def _unpack(data: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if isinstance(data, tuple | list):
        return tuple(_unpack(one, arrays) for one in data)
    if not isinstance(data, dict):
        raise PackingError(f"{type(data).__name__} is no part of an operation or an answer")
    if _ARRAY in data:
        return arrays[data[_ARRAY]]
    if _BYTES in data:
        return arrays[data[_BYTES]].tobytes()
    if _MAP in data:
        return {_unpack(key, arrays): _unpack(one, arrays) for key, one in data[_MAP]}
    kind = _KINDS[data[_KIND]]
    fields = {field: _unpack(one, arrays) for field, one in data.items() if field != _KIND}
    for field, value in fields.items():
        if not conforms(value, _hints(kind)[field]):
            raise PackingError(f"{field} of {kind.__name__} cannot be {value!r:.80}")
    return kind(**fields)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
