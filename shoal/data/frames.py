"""Columns of data frames and Arrow tables as arrays of numbers; what is no number is refused by its name.

Fractions become float32, whole numbers int64, as models take them; bytes (uint8) and booleans stay.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ConfigError

Array = npt.NDArray[Any]


def columns_of_frame(frame: Any, name: str) -> dict[str, Array]:
    """The columns of a pandas data frame; its index is left out."""
    from pandas.api.types import is_numeric_dtype

    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ConfigError(f"the {name} data has more than one column {twice!r}: rename them")
    columns = {}
    for key, series in frame.items():
        missing = series.isna().to_numpy()
        if missing.any():
            _refuse_missing(key, name, int(missing.sum()), int(missing.argmax()))
        if is_numeric_dtype(series.dtype):
            columns[str(key)] = plain(series.to_numpy())
        else:
            columns[str(key)] = plain(_stacked(series.tolist(), key, name, str(series.dtype)))
    return columns


def columns_of_arrow(table: Any, name: str) -> dict[str, Array]:
    """The columns of a pyarrow Table or RecordBatch. Lists of equal lengths become further dimensions."""
    twice = [key for key in table.column_names if table.column_names.count(key) > 1]
    if twice:
        raise ConfigError(f"the {name} data has more than one column {twice[0]!r}: rename them")
    return {key: plain(numbers_of_arrow(table[key], key, name)) for key in table.column_names}


def plain(column: Array) -> Array:
    """Of the types that models take; a copy only where it must be one."""
    if column.dtype.kind == "f":
        return column.astype(np.float32, copy=False)
    if column.dtype.kind == "u" and column.dtype.itemsize == 8 and column.size and int(column.max()) >= 2**63:
        return column  # refused by its name where it becomes a tensor
    return column.astype(np.int64, copy=False) if column.dtype.kind in "iu" and column.dtype != np.uint8 else column


def numbers_of_arrow(column: Any, key: str, name: str) -> Array:
    """A pyarrow Array or ChunkedArray as numbers; raises `ConfigError` where it holds anything else."""
    import pyarrow as pa

    return _of_arrow(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, key, name)


def _of_arrow(array: Any, key: str, name: str) -> Array:
    import pyarrow as pa

    kind = array.type
    if array.null_count:
        _refuse_missing(key, name, array.null_count, int(np.asarray(array.is_null()).argmax()))
    if isinstance(kind, pa.FixedShapeTensorType):
        return np.asarray(array.to_numpy_ndarray())
    if pa.types.is_dictionary(kind):
        return _of_arrow(array.dictionary_decode(), key, name)
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.unique(np.asarray(array.value_lengths()))
        if len(lengths) > 1:
            raise ConfigError(
                f"column {key!r} of the {name} data has lists of {lengths[0]} to {lengths[-1]} items: those of a "
                "table must have equal lengths. Pad them, or give a Dataset with a `collate` method"
            )
        inner = _of_arrow(array.flatten(), key, name)
        return inner.reshape(len(array), -1, *inner.shape[1:]) if len(array) else inner
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        _refuse(key, name, str(kind))
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _stacked(values: list[Any], key: Any, name: str, kind: str) -> Array:
    """A column of arrays or lists of numbers, all of one shape."""
    if not values or not isinstance(values[0], np.ndarray | list | tuple):
        _refuse(key, name, kind)
    try:
        stacked = np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise ConfigError(f"column {key!r} of the {name} data has arrays that differ in shape: {error}") from None
    if stacked.dtype.kind not in "biufc":
        _refuse(key, name, f"arrays of {stacked.dtype}")
    return stacked


def _refuse(key: Any, name: str, kind: str) -> NoReturn:
    raise ConfigError(
        f"column {key!r} of the {name} data is of type {kind}, not of numbers: leave it out, or turn it into numbers "
        "first (codes of categories, seconds of times)"
    )


def _refuse_missing(key: Any, name: str, count: int, first: int) -> NoReturn:
    raise ConfigError(
        f"column {key!r} of the {name} data has {count:,} missing values, the first in row {first}: fill them in or "
        "drop those rows first"
    )
