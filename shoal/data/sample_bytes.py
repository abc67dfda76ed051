"""Samples as bytes: tensors, arrays, numbers and text, in tuples, lists and dicts; nothing is pickled.

A sample becomes a *form*, which stays in memory and is the same for most samples of a data set (types, keys, numbers
of dimensions), and bytes (sizes and content), which can lie in a file. Every part begins at a multiple of 8 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import UserError

Form = tuple[Any, ...]  # the kind of a value, and what is common to values of that kind

_ALIGN = 8
_INT, _FLOAT = struct.Struct("<q"), struct.Struct("<d")


class SampleError(UserError):
    """A sample holds something that cannot become bytes."""


def encode(value: Any, into: bytearray, at: str = "") -> Form:
    """Append the bytes of `value`, and return its form. Raises `SampleError` that says where in the sample it is
    (`at`)."""
    known = _ENCODERS.get(type(value))
    if known is not None:
        return known(value, into, at)
    for kind, encoder in _ENCODERS.items():
        if isinstance(value, kind):
            return encoder(value, into, at)
    where = f" at sample{at}" if at else ""
    raise SampleError(
        f"it holds a {type(value).__module__}.{type(value).__qualname__}{where}: a stream may give tensors, arrays, "
        "numbers, strings, bytes and None, in tuples, lists and dicts"
    )


def _encode_tensor(value: Tensor, into: bytearray, at: str) -> Form:
    if value.layout is not torch.strided:
        raise SampleError(f"it holds a sparse tensor at sample{at}: call to_dense() on it")
    flat = value.detach().cpu().contiguous().reshape(-1)
    _put(into, value.shape, flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return Tensor, value.dtype, value.dim()


def _encode_array(value: np.ndarray[Any, Any], into: bytearray, at: str) -> Form:
    if value.dtype.hasobject:
        raise SampleError(f"it holds an array of Python objects at sample{at}: give arrays of numbers or text")
    _put(into, value.shape, np.ascontiguousarray(value).tobytes())
    return np.ndarray, value.dtype, value.ndim


def _encode_scalar(value: np.generic, into: bytearray, at: str) -> Form:
    _put(into, (), value.tobytes())
    return np.generic, value.dtype


def _encode_int(value: int, into: bytearray, at: str) -> Form:
    try:
        into += _INT.pack(value)
    except struct.error:
        raise SampleError(f"it holds a whole number of more than 64 bits at sample{at}") from None
    return (int,)


def _encode_float(value: float, into: bytearray, at: str) -> Form:
    into += _FLOAT.pack(value)
    return (float,)


def _encode_bytes(value: bytes, into: bytearray, at: str) -> Form:
    _put(into, (len(value),), value)
    return (bytes,)


def _encode_text(value: str, into: bytearray, at: str) -> Form:
    _encode_bytes(value.encode("utf-8", "surrogatepass"), into, at)
    return (str,)


def _encode_nothing(value: None, into: bytearray, at: str) -> Form:
    return (None,)


def _encode_bool(value: bool, into: bytearray, at: str) -> Form:
    into += _INT.pack(value)
    return (bool,)


def _encode_dict(value: Mapping[Any, Any], into: bytearray, at: str) -> Form:
    return dict, tuple(value), tuple(encode(part, into, f"{at}[{key!r}]") for key, part in value.items())


def _encode_tuple(value: tuple[Any, ...], into: bytearray, at: str) -> Form:
    named = type(value) if hasattr(value, "_fields") else None
    return tuple, named, tuple(encode(part, into, f"{at}[{number}]") for number, part in enumerate(value))


def _encode_list(value: list[Any], into: bytearray, at: str) -> Form:
    return list, tuple(encode(part, into, f"{at}[{number}]") for number, part in enumerate(value))


_ENCODERS: dict[type, Callable[[Any, bytearray, str], Form]] = {
    Tensor: _encode_tensor,
    np.ndarray: _encode_array,
    bool: _encode_bool,  # before int, of which it is a subclass
    np.generic: _encode_scalar,  # before float, of which np.float64 is a subclass
    int: _encode_int,
    float: _encode_float,
    str: _encode_text,
    bytes: _encode_bytes,
    type(None): _encode_nothing,
    tuple: _encode_tuple,
    list: _encode_list,
    Mapping: _encode_dict,
}


def _put(into: bytearray, sizes: tuple[int, ...], content: bytes | memoryview) -> None:
    into += struct.pack(f"<{len(sizes)}q", *sizes)
    into += content
    into += bytes(-len(into) % _ALIGN)


def decode(form: Form, data: bytearray) -> Any:
    """The value of this form that `data` holds. Tensors and arrays share its memory."""
    value, at = _decode(form, data, 0)
    assert at == len(data), f"{len(data) - at} bytes are left over"
    return value


def _decode(form: Form, data: bytearray, at: int) -> tuple[Any, int]:  # noqa: PLR0911 - a table of kinds
    kind = form[0]
    if kind is Tensor or kind is np.ndarray:
        shape, at = struct.unpack_from(f"<{form[2]}q", data, at), at + 8 * form[2]
        count = int(np.prod(shape, dtype=np.int64))
        end = at + count * form[1].itemsize
        if kind is np.ndarray:
            flat: Any = np.frombuffer(data, form[1], count, at)
        else:
            flat = (
                torch.frombuffer(data, dtype=form[1], count=count, offset=at)
                if count
                else torch.empty(0, dtype=form[1])
            )
        return flat.reshape(shape), _after(end)
    if kind is int:
        return _INT.unpack_from(data, at)[0], at + 8
    if kind is float:
        return _FLOAT.unpack_from(data, at)[0], at + 8
    if kind is str or kind is bytes:
        (length,) = _INT.unpack_from(data, at)
        content = bytes(data[at + 8 : at + 8 + length])
        return (content if kind is bytes else content.decode("utf-8", "surrogatepass")), _after(at + 8 + length)
    if kind is np.generic:
        return np.frombuffer(data, form[1], 1, at)[0], _after(at + form[1].itemsize)
    if kind is bool:
        return bool(_INT.unpack_from(data, at)[0]), at + 8
    if kind is None:
        return None, at
    parts = []
    for part in form[-1]:
        value, at = _decode(part, data, at)
        parts.append(value)
    if kind is dict:
        return dict(zip(form[1], parts, strict=True)), at
    if kind is list:
        return parts, at
    return (tuple(parts) if form[1] is None else form[1](*parts)), at


def _after(end: int) -> int:
    return end + -end % _ALIGN
