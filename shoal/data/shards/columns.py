"""Columns of a prepared data set as tensors: which can become one, and how the rows of a block lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ConfigError
from shoal.core.order import Indices

Array = npt.NDArray[Any]
Decode = Callable[[Any], Any]  # the bytes of one sample to a tensor or array
IMAGE = "image"
_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}  # torch computes with few unsigned types


@dataclass(frozen=True)
class Column:
    """One part of a sample: a column, or a group of columns of numbers side by side, which is a row of them even where
    it has only one. `decode` turns its bytes into a tensor; None: it is numbers."""

    names: tuple[str, ...]
    decode: Decode | None = None
    is_group: bool = False

    @property
    def words(self) -> str:
        return ", ".join(self.names)


@dataclass(frozen=True)
class Packed:
    """Bytes of samples: sample i is ``data[starts[i]:stops[i]]``."""

    data: Any  # a buffer
    starts: Indices
    stops: Indices

    @property
    def nbytes(self) -> int:
        return len(self.data) + self.starts.nbytes + self.stops.nbytes


Values = Array | Packed


def model_dtype(values: Array, column: Column) -> np.dtype[Any]:
    """Fractions as float32, as parameters are; whole numbers as int64, as targets must be. Numbers side by side are
    fractions. Lists of whole numbers stay as they are, for they may be pixels."""
    if values.dtype == np.float64 or column.is_group:
        return np.dtype(np.float32)
    whole = values.ndim == 1 and values.dtype.kind in "iu"
    return np.dtype(np.int64) if whole else values.dtype


def choose_columns(
    schema: Any, columns: Sequence[str | Sequence[str]] | None, decode: Mapping[str, Decode], where: str
) -> tuple[Column, ...]:
    """The parts of a sample. Raises `ConfigError` for a column that is not there or cannot become a tensor."""
    chosen = []
    for one in schema.names if columns is None else columns:
        names = (one,) if isinstance(one, str) else tuple(one)
        if not names:
            raise ConfigError(f"columns has an empty group: name at least one of {', '.join(schema.names)} in it")
        for name in names:
            if name not in schema.names:
                raise ConfigError(f"{where} has no column {name!r}: it has {', '.join(schema.names)}")
            _check(schema.field(name).type, name, decode, where, side_by_side=len(names) > 1)
        kind = schema.field(names[0]).type
        is_group = not isinstance(one, str) and _is_number(kind)  # bytes, and lists, alone are what they are
        chosen.append(Column(names, decode.get(names[0]) if _is_bytes(kind) else None, is_group))
    if not chosen:
        raise ConfigError(f"columns=[] leaves nothing of {where}: name at least one of {', '.join(schema.names)}")
    return tuple(chosen)


def _check(kind: Any, name: str, decode: Mapping[str, Decode], where: str, side_by_side: bool) -> None:
    if _is_bytes(kind):
        if name not in decode or side_by_side:
            raise ConfigError(
                f"column {name!r} of {where} is {kind}, which is no number: leave it out by columns=[...], or say how "
                f"its bytes become a tensor by decode={{{name!r}: function}}"
            )
        return
    if side_by_side and _is_list(kind):
        raise ConfigError(f"column {name!r} of {where} is {kind}: only numbers can be put side by side")
    while _is_list(kind):
        kind = kind.value_type
    if not _is_number(kind):
        raise ConfigError(
            f"column {name!r} of {where} is {kind}, which cannot become a tensor: leave it out by columns=[...], or "
            "make numbers of it with `shoal prepare`"
        )


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
                or pa.types.is_string(kind) or pa.types.is_large_string(kind))  # fmt: skip


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def values_of(table: Any, column: Column) -> Values:
    """The rows of a table in memory. Raises `ValueError` for what no tensor can hold."""
    if column.decode is not None:
        return _packed(_single(table.column(column.names[0])), column.names[0])
    parts = [_numbers(_single(table.column(name)), name) for name in column.names]
    return np.stack(parts, axis=1) if column.is_group else parts[0]


def _single(chunked: Any) -> Any:
    import pyarrow as pa

    return chunked.chunk(0) if chunked.num_chunks == 1 else pa.concat_arrays(chunked.chunks)


def _numbers(array: Any, name: str) -> Array:
    import pyarrow as pa

    if array.null_count and not pa.types.is_floating(array.type):
        raise ValueError(
            f"column {name!r} has {array.null_count} empty values, and {array.type} has no value for these: leave it "
            f"out by columns=[...], or fill them with `shoal prepare … --job fill:columns={name}:value=0` (or mean, or "
            "most-frequent)"
        )
    if not _is_list(array.type):
        found: Array = array.to_numpy(zero_copy_only=False)
        return found.astype(_WIDER[str(array.type)]) if str(array.type) in _WIDER else found
    count, flat = len(array), array.flatten()
    if not pa.types.is_fixed_size_list(array.type) and count:
        lengths = np.diff(np.asarray(array.offsets))
        if lengths.min() != lengths.max():
            raise ValueError(f"column {name!r} has lists of {lengths.min()} to {lengths.max()} values: make them equal")
    inner = _numbers(flat, name)
    size = len(inner) // count if count else 0
    return inner.reshape(count, size, *inner.shape[1:])


def _packed(array: Any, name: str) -> Packed:
    import pyarrow as pa

    if array.null_count:
        raise ValueError(
            f"column {name!r} is empty in {array.null_count} samples: leave these out with a job for `shoal prepare`, "
            f"or give them a value with `--job fill:columns={name}:value=…`"
        )
    if pa.types.is_fixed_size_binary(array.type):
        borders = np.arange(len(array) + 1, dtype=np.int64) * array.type.byte_width + array.offset
    else:
        wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        raw = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
        borders = raw[array.offset : array.offset + len(array) + 1].astype(np.int64)
    data = array.buffers()[-1] if array.buffers()[-1] is not None else b""
    return Packed(memoryview(data).cast("B"), borders[:-1], borders[1:])


def joined(parts: Sequence[Values], order: Indices | None) -> Values:
    """The rows of several blocks one after the other, in this order."""
    if isinstance(parts[0], Packed):
        return _joined_bytes([one for one in parts if isinstance(one, Packed)], order)
    arrays = [one for one in parts if isinstance(one, np.ndarray)]
    whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return whole if order is None else whole.take(order, axis=0)


def _joined_bytes(parts: Sequence[Packed], order: Indices | None) -> Packed:
    if len(parts) == 1:
        data, starts, stops = parts[0].data, parts[0].starts, parts[0].stops
    else:
        bases = np.cumsum([0, *(len(part.data) for part in parts)])
        data = memoryview(b"".join(part.data for part in parts))
        starts = np.concatenate([part.starts + base for part, base in zip(parts, bases, strict=False)])
        stops = np.concatenate([part.stops + base for part, base in zip(parts, bases, strict=False)])
    return Packed(data, starts, stops) if order is None else Packed(data, starts[order], stops[order])


def rows_of(values: Values, start: int, stop: int) -> Values:
    """Rows ``[start, stop)``; not copied."""
    if isinstance(values, Packed):
        if start == 0 and stop == len(values.starts):
            return values
        low, high = int(values.starts[start]), int(values.stops[stop - 1])
        return Packed(values.data[low:high], values.starts[start:stop] - low, values.stops[start:stop] - low)
    return values[start:stop]
