"""Rows of one key next to each other, though all that is sorted is the hash of the key."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.preparing.spill import LINE, OWN
from shoal.data.preparing.step import Groups, column

Flags = npt.NDArray[np.bool_]


def groups_of(table: Any, key: str) -> Groups:
    """The groups of a table that is sorted by `LINE`, the hashes of the column `key`, without the columns that are our
    own. Two keys with one hash, which nobody has seen yet, are two groups."""
    import pyarrow as pa

    hashes = column(table, LINE, "the line").to_numpy()
    keys = column(table, key, "the key")
    new_hash = np.append(True, hashes[1:] != hashes[:-1])
    new_key = np.append(True, changes(keys))
    if bool((new_key & ~new_hash).any()):
        order = _apart(keys, np.flatnonzero(new_hash), new_key)
        table = table.take(pa.array(order))
        keys = column(table, key, "the key")
        new_key = np.append(True, changes(keys))
    table = table.drop_columns([name for name in OWN if name in table.column_names])
    return Groups(table, keys, np.flatnonzero(new_hash | new_key))


def changes(values: Any) -> Flags:
    """Whether each value but the first differs from the one before it; null and NaN are equal to themselves."""
    import pyarrow as pa

    kind = values.type
    if len(values) < 2:
        return np.zeros(0, bool)
    if pa.types.is_dictionary(kind):
        return changes(values.dictionary_decode())
    if pa.types.is_struct(kind):
        differ = np.zeros(len(values) - 1, bool)
        for number in range(kind.num_fields):
            differ |= changes(values.field(number))
        return differ | _null_changes(values)
    if pa.types.is_nested(kind):
        plain = values.to_pylist()
        return np.array([one != other for one, other in itertools.pairwise(plain)])
    import pyarrow.compute as pc

    before, after = values.slice(0, len(values) - 1), values.slice(1)
    differ = pc.not_equal(before, after).fill_null(False).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        nans = pc.and_(pc.is_nan(before), pc.is_nan(after)).fill_null(False).to_numpy(zero_copy_only=False)
        differ = differ & ~nans
    found: Flags = differ | _null_changes(values)
    return found


def _null_changes(values: Any) -> Flags:
    if not values.null_count:
        return np.zeros(len(values) - 1, bool)
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    found: Flags = nulls[1:] != nulls[:-1]
    return found


def _apart(keys: Any, starts: npt.NDArray[np.int64], new_key: Flags) -> npt.NDArray[np.int64]:
    """An order that brings the rows of each key together where keys share a hash, in order of their first rows."""
    order = np.arange(len(keys))
    stops = np.append(starts[1:], len(keys))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if not new_key[start + 1 : stop].any():
            continue
        places: dict[str, int] = {}
        numbers = [places.setdefault(repr(keys[row].as_py()), len(places)) for row in range(start, stop)]
        order[start:stop] = start + np.argsort(numbers, kind="stable")
    return order
