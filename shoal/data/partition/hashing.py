"""A 64-bit hash of values that is the same for ever, on every machine and with every version of every library.

It is a hash of canonical bytes: whole numbers, dates, times and booleans by their 64 bits, so that 7 has one hash
whatever the width of its column; floating-point numbers by the bits of the double, 0.0 for -0.0 and one NaN; text and
binary by their bytes; structs by their fields. The constants are splitmix64's.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_NULL, _NUMBER, _FLOAT, _BYTES, _STRUCT, _OTHER = (np.uint64(seed) for seed in (11, 23, 37, 41, 53, 67))
_LONG = 256  # longer values are rare as keys: they are hashed one by one
_WORD = 8


def hash_values(values: Any) -> Hashes:
    """The hash of each value of a `pyarrow.Array` or `ChunkedArray`."""
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.ChunkedArray):  # of several chunks that do not fit into one array
        return np.concatenate([hash_values(chunk) for chunk in values.chunks])
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    hashes = _of_type(values)
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = _mixed(np.full(1, _NULL))[0]
    return hashes


def _of_type(values: Any) -> Hashes:
    import pyarrow as pa

    kind, types = values.type, pa.types
    if types.is_null(kind):
        return np.zeros(len(values), np.uint64)
    if types.is_boolean(kind):
        return _of_numbers(values.cast(pa.uint8()))
    if types.is_integer(kind):
        return _of_numbers(values)
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _of_numbers(values.view(pa.int32() if kind.bit_width == 32 else pa.int64()))
    if types.is_floating(kind):
        return _of_floats(values)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return _of_bytes(values)
    if types.is_struct(kind):
        state = np.full(len(values), _STRUCT)
        for number in range(kind.num_fields):
            state = _mixed(state ^ hash_values(values.field(number)))
        return state
    return _of_others(values)


def _mixed(state: Hashes) -> Hashes:
    """The finisher of splitmix64: every bit of the answer depends on every bit of the question."""
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    mixed: Hashes = state ^ (state >> np.uint64(31))
    return mixed


def _of_numbers(values: Any) -> Hashes:
    import pyarrow as pa

    numbers = _filled(values, 0).to_numpy(zero_copy_only=False)
    wide = numbers.astype(np.uint64 if pa.types.is_unsigned_integer(values.type) else np.int64)
    return _mixed(_mixed(np.full(1, _NUMBER)) ^ wide.view(np.uint64))


def _of_floats(values: Any) -> Hashes:
    numbers = _filled(values, 0.0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 becomes 0.0
    numbers[np.isnan(numbers)] = np.nan
    return _mixed(_mixed(np.full(1, _FLOAT)) ^ numbers.view(np.uint64))


def _filled(values: Any, by: Any) -> Any:
    return values.fill_null(by) if values.null_count else values


def _of_bytes(values: Any) -> Hashes:
    """Eight bytes at a time of all values that are so long; the last ones are filled up with zeros."""
    starts, lengths, data = _spans(values)
    state = _mixed(np.full(len(values), _BYTES) ^ lengths.astype(np.uint64))
    if not len(values):
        return state
    long = lengths > _LONG
    for row in np.flatnonzero(long):
        piece = data[starts[row] : starts[row] + lengths[row]].tobytes()
        state[row] = int.from_bytes(hashlib.blake2b(piece, digest_size=_WORD).digest(), "little")
    rows = np.flatnonzero(~long & (lengths > 0))
    padded = np.zeros(len(data) + _WORD, np.uint8)
    padded[: len(data)] = data
    words = np.ndarray(len(data) + 1, dtype="<u8", buffer=padded, strides=(1,))  # the word at every byte
    at = 0
    while len(rows):
        left = lengths[rows] - at
        bits = np.minimum(left, _WORD).astype(np.uint64) * np.uint64(_WORD)
        mask = np.where(bits == 64, ~np.uint64(0), (np.uint64(1) << (bits % np.uint64(64))) - np.uint64(1))
        state[rows] = _mixed(state[rows] ^ (words[starts[rows] + at].astype(np.uint64) & mask))
        rows, at = rows[left > _WORD], at + _WORD
    return state


def _spans(values: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each value begins, how long it is (a null: 0), and the bytes that this counts by."""
    import pyarrow as pa

    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, offsets_buffer, data_buffer = values.buffers()
    count = len(values)
    if not count or offsets_buffer is None:
        return np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(0, np.uint8)
    kind = np.dtype(np.int64 if large else np.int32)
    offsets = np.frombuffer(offsets_buffer, kind, count + 1, values.offset * kind.itemsize).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8, last - first, first) if last > first else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    if values.null_count:
        lengths[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return offsets[:-1] - first, lengths, data


def _of_others(values: Any) -> Hashes:
    """Lists, decimals and the like, one by one: as JSON with sorted names."""
    texts = (json.dumps(one, sort_keys=True, default=str).encode() for one in values.to_pylist())
    found = [int.from_bytes(hashlib.blake2b(text, digest_size=_WORD).digest(), "little") for text in texts]
    return _mixed(np.array(found, np.uint64) ^ _OTHER)
