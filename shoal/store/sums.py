"""Adding up gradients: in a fixed order, block by block, without an array for what lies in between.

The sum of the same parts is the same bytes, wherever and however often it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.store.operations import Shaping

Array = npt.NDArray[Any]

_BLOCK = 1 << 15  # elements: what is added up stays in the cache
_MANY = 4  # more parts than this are added up in double precision


@dataclass(frozen=True, eq=False)
class Contribution:
    """What one part says about one slice: an array of the slice's shape, or rows (within the slice, ascending, each
    once) and as many rows of values."""

    values: Array
    rows: Array | None = None


def is_plain(shaping: Shaping) -> bool:
    """Whether the gradient stays as it is."""
    return shaping.divisor == 1.0 and shaping.clip is None and shaping.scale == 1.0


def gather_rows(parts: Sequence[Contribution]) -> Array | None:
    """The rows that any of `parts` touches, ascending; None where one touches the whole slice."""
    touched = [part.rows for part in parts if part.rows is not None]
    if len(touched) < len(parts):
        return None
    if len(touched) == 1:
        return touched[0]
    return np.unique(np.concatenate(touched))


def blocks_of_sum(
    parts: Sequence[Contribution], rows: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], shaping: Shaping
) -> Iterator[tuple[slice, Array]]:
    """The shaped sum of `parts`, in their order, a block at a time: where it belongs, and the block itself, which is
    good until the next one. `rows` are those of `gather_rows`, `shape` is that of the sum. A block has been read before
    it is handed out, so it may be written into one of the parts."""
    wide = _sum_dtype([part.values.dtype for part in parts], dtype)
    height = max(1, _BLOCK * shape[0] // max(1, int(np.prod(shape))))
    total = np.empty((min(height, shape[0]), *shape[1:]), wide)
    narrow = total if wide == dtype else np.empty(total.shape, dtype)
    for start in range(0, shape[0], height):
        block = slice(start, min(start + height, shape[0]))
        sums = total[: block.stop - block.start]
        if all(part.rows is rows for part in parts):  # nothing to look up: each has a value for every unit
            np.copyto(sums, parts[0].values[block], casting="same_kind")
            for part in parts[1:]:
                np.add(sums, part.values[block], out=sums, casting="same_kind")
        else:
            sums[...] = 0
            for part in parts:
                _add_rows(sums, part, rows, block)
        if shaping.divisor != 1.0:
            np.divide(sums, shaping.divisor, out=sums)
        shaped = narrow[: block.stop - block.start]
        if shaped.dtype != sums.dtype:
            np.copyto(shaped, sums, casting="same_kind")
        if shaping.clip is not None:
            np.clip(shaped, -shaping.clip, shaping.clip, out=shaped)
        if shaping.scale != 1.0:
            np.multiply(shaped, shaping.scale, out=shaped)
        yield block, shaped


def _add_rows(sums: Array, part: Contribution, rows: Array | None, block: slice) -> None:
    if part.rows is None:
        sums += part.values[block]
        return
    first, last = (block.start, block.stop - 1) if rows is None else (rows[block.start], rows[block.stop - 1])
    low, high = np.searchsorted(part.rows, [first, last + 1])
    mine = part.rows[low:high]
    place = mine - block.start if rows is None else np.searchsorted(rows[block], mine)
    sums[place] += part.values[low:high]


def _sum_dtype(given: list[np.dtype[Any]], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What to add up in: as wide as the widest part and the values, double precision for many parts, and never half
    precision. Whole numbers are added up as what they are kept in."""
    if dtype.kind != "f":
        return dtype
    least = np.dtype(np.float64 if len(given) > _MANY else np.float32)
    return np.result_type(least, dtype, *(kind for kind in given if kind.kind == "f"))


def add_repeated(rows: Array, values: Array) -> tuple[Array, Array]:
    """Rows ascending, each once, and their values; those of a row that was named several times are added up in the
    order in which they came."""
    if len(rows) < 2 or bool((rows[1:] > rows[:-1]).all()):
        return rows, values
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if len(starts) == len(rows):
        return ordered, values[order]
    return ordered[starts], np.add.reduceat(values[order], starts, axis=0)
