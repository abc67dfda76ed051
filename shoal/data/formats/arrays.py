"""NumPy files: `.npy` is one column, `.npz` one for each of its arrays. A row is what the first dimension counts.

Rows that have a shape are lists of fixed size, one in another for each dimension.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.data.formats.base import Format, FormatError, OnBad, Split, formats
from shoal.data.formats.batches import ROWS
from shoal.data.formats.seeking import open_to_seek
from shoal.data.places import Entry, Place

_HEADER_BYTES = 4096
_LOCAL_HEADER_BYTES = 30  # of a member of a zip file, before its name


@dataclass(frozen=True)
class _Array:
    """Where the rows of an array lie in the file. `start` is None where they can only be had all together."""

    name: str
    start: int | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


class _Arrays(Format):
    """`Split.start` and `stop` count rows."""

    def splits(self, entry: Entry, block_bytes: int) -> list[Split]:
        arrays = self._index(entry.place)
        rows, row_bytes = arrays[0].shape[0], sum(array.row_bytes for array in arrays)
        step = max(1, block_bytes // max(1, row_bytes))
        if any(array.start is None for array in arrays):
            return [Split(entry.place, self.name, 0, rows, entry.nbytes)] if rows else []
        starts = range(0, rows, step)
        return [
            Split(entry.place, self.name, start, min(start + step, rows), min(step, rows - start) * row_bytes)
            for start in starts
        ]

    def counted(self, entry: Entry, block_bytes: int) -> list[tuple[Split, int]]:
        return [(split, split.stop - split.start) for split in self.splits(entry, block_bytes)]

    def schema(self, entry: Entry) -> Any:
        import pyarrow as pa

        return pa.schema([_field(array, entry.place) for array in self._index(entry.place)])

    def read(self, split: Split, schema: Any, on_bad: OnBad) -> Iterator[Any]:
        import pyarrow as pa

        arrays = {array.name: array for array in self._index(split.place)}
        for name in schema.names:
            if name not in arrays:
                raise FormatError(f"{split.place} has no array {name!r}: it has {', '.join(arrays)}")
        whole = self._whole(split.place) if any(arrays[name].start is None for name in schema.names) else None
        for start in range(split.start, split.stop, ROWS):
            stop = min(start + ROWS, split.stop)
            columns = []
            for field in schema:
                array = arrays[field.name]
                rows = whole[field.name][start:stop] if whole is not None else _rows(split.place, array, start, stop)
                columns.append(column(rows).cast(field.type))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _index(self, place: Place) -> list[_Array]:
        raise NotImplementedError

    def _whole(self, place: Place) -> Mapping[str, Any]:
        raise NotImplementedError


@formats.add("npy")
class Npy(_Arrays):
    """The column is called ``data``."""

    name = "npy"
    endings = (".npy",)

    def _index(self, place: Place) -> list[_Array]:
        head = place.read(0, min(_HEADER_BYTES, place.nbytes()))
        return [_parse(head, "data", place, 0)]

    def _whole(self, place: Place) -> Mapping[str, Any]:
        return {"data": _load(place.read(), place)}


@formats.add("npz")
class Npz(_Arrays):
    """Arrays of the same length. Those written by `np.savez_compressed` are one split."""

    name = "npz"
    endings = (".npz",)

    def _index(self, place: Place) -> list[_Array]:
        with open_to_seek(place) as file:
            try:
                arrays = [_member(file, member, place) for member in zipfile.ZipFile(file).infolist()]
            except zipfile.BadZipFile:
                raise FormatError(f"{place} is no .npz file, or it is damaged or cut off") from None
        if not arrays:
            raise FormatError(f"{place} has no arrays")
        for array in arrays[1:]:
            if array.shape[0] != arrays[0].shape[0]:
                raise FormatError(
                    f"the arrays of {place} have different lengths: {arrays[0].name!r} {arrays[0].shape[0]}, "
                    f"{array.name!r} {array.shape[0]}. They must have one row for each sample"
                )
        return arrays

    def _whole(self, place: Place) -> Mapping[str, Any]:
        with zipfile.ZipFile(io.BytesIO(place.read())) as members:
            return {member.removesuffix(".npy"): _load(members.read(member), place) for member in members.namelist()}


def _member(file: Any, member: zipfile.ZipInfo, place: Place) -> _Array:
    with zipfile.ZipFile(file) as members, members.open(member) as stream:
        head = stream.read(_HEADER_BYTES)
    name = member.filename.removesuffix(".npy")
    if member.compress_type != zipfile.ZIP_STORED:
        return _parse(head, name, place, None)
    file.seek(member.header_offset)
    local = file.read(_LOCAL_HEADER_BYTES)
    start = member.header_offset + _LOCAL_HEADER_BYTES + sum(np.frombuffer(local[26:30], "<u2").tolist())
    return _parse(head, name, place, start)


def _parse(head: bytes, name: str, place: Place, start: int | None) -> _Array:
    """By the header of an array. Raises `FormatError` for what has no rows or cannot be a column."""
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except ValueError as error:
        raise FormatError(f"{place} is no NumPy array, or it is damaged: {error}") from None
    if dtype.hasobject:
        raise FormatError(f"array {name!r} of {place} holds Python objects, which are not unpickled: save numbers")
    if dtype.kind not in "biufUS":
        raise FormatError(f"array {name!r} of {place} is of type {dtype}, which cannot be a column: save numbers")
    if not shape:
        raise FormatError(f"array {name!r} of {place} is a single value: its rows must be the samples")
    scattered = start is None or (fortran and len(shape) > 1)
    return _Array(name, None if scattered else start + stream.tell(), shape, dtype)  # type: ignore[operator]  # not None


def _load(data: bytes, place: Place) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{place} is damaged or cut off: {error}") from None


def _rows(place: Place, array: _Array, start: int, stop: int) -> Any:
    assert array.start is not None
    wanted = (stop - start) * array.row_bytes
    data = place.read(array.start + start * array.row_bytes, array.start + stop * array.row_bytes) if wanted else b""
    if len(data) != wanted:
        raise FormatError(f"{place} is cut off: {array.shape[0]} rows are promised, row {start} and on are missing")
    return np.frombuffer(data, array.dtype).reshape(stop - start, *array.shape[1:])


def column(rows: Any) -> Any:
    """An array as a column: what has more than one dimension becomes lists of fixed size."""
    import pyarrow as pa

    rows = np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
    if rows.ndim == 1:
        return pa.array(rows if rows.dtype.kind != "S" else rows.astype("U"))
    made = pa.array(rows.reshape(-1))
    for size in reversed(rows.shape[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    return made


def _field(array: _Array, place: Place) -> Any:
    import pyarrow as pa

    shape = array.shape[1:]
    if math.prod(shape) == 0:
        raise FormatError(f"the rows of array {array.name!r} of {place} are empty: they have the shape {list(shape)}")
    kind = pa.string() if array.dtype.kind in "US" else pa.from_numpy_dtype(array.dtype.newbyteorder("="))
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return pa.field(array.name, kind)
