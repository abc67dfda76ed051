"""What is known of a sorted run of rows: a regular sample of its line, with exact positions.

The *line* of a run is the sorted values by which it is cut: hashes of keys, or keys. Every value that fills more than
one step of the sample is in it, with its exact count: the samples of all runs are the sketch by which heavy keys are
found. A null comes after all values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Values = npt.NDArray[Any]

SAMPLES = 1024  # of a run: places in the line are known within rows / SAMPLES
_FEWEST_SAMPLES = 64
_ALL_SAMPLES = 1 << 21  # of all runs together: they are merged in one process


def samples_for(runs: int, shards: int) -> int:
    """How many values of each run are sampled: enough for so many shards, but not more than can be merged."""
    return max(_FEWEST_SAMPLES, min(max(SAMPLES, 32 * shards), _ALL_SAMPLES // max(1, runs)))


@dataclass(frozen=True)
class Line:
    """Sorted values without null, and how many nulls come after them."""

    values: Values
    nulls: int = 0

    @classmethod
    def of(cls, values: Any) -> Line:
        """Of a sorted `pyarrow.Array` that `line_of` has made, nulls at its end."""
        nulls = int(values.null_count)
        return cls(values.slice(0, len(values) - nulls).to_numpy(zero_copy_only=False), nulls)

    def __len__(self) -> int:
        return len(self.values) + self.nulls

    def span(self, value: Any) -> tuple[int, int]:
        """The positions ``[start, stop)`` of `value`; None is null."""
        if value is None:
            return len(self.values), len(self)
        kind = self.values.dtype
        wanted = np.array([value], dtype=kind) if kind.kind != "O" else value
        left, right = (np.searchsorted(self.values, wanted, side) for side in ("left", "right"))
        return int(np.ravel(left)[0]), int(np.ravel(right)[0])


def line_of(values: Any) -> Any:
    """A `pyarrow.Array` of whole numbers, floating-point numbers or texts, in the same order as `values`.

    Raises `TypeError` for what has no order.
    """
    import pyarrow as pa

    kind, types = values.type, pa.types
    if types.is_dictionary(kind):
        return line_of(values.dictionary_decode())
    if types.is_boolean(kind):
        return values.cast(pa.uint8())
    if types.is_integer(kind) or types.is_floating(kind) or types.is_string(kind):
        return values.cast(pa.float32()) if types.is_float16(kind) else values
    if types.is_temporal(kind) and not types.is_interval(kind):
        return values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if types.is_decimal(kind):
        return values.cast(pa.float64())
    if types.is_large_string(kind):
        return values.cast(pa.string())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        texts = [None if one is None else one.decode("latin-1") for one in values.to_pylist()]
        return pa.array(texts, pa.string())  # characters in the order of the bytes
    if types.is_null(kind):
        return values.cast(pa.int64())
    raise TypeError(f"values of type {kind} have no order")


@dataclass(frozen=True)
class Sample:
    """Of a run of `rows` rows: some values of its line in order, and the positions ``[lower, upper)`` of each."""

    rows: int
    values: tuple[Any, ...]
    lower: Positions
    upper: Positions

    @classmethod
    def of(cls, line: Line, samples: int = SAMPLES, seed: int = 0) -> Sample:
        """Of every step of the line the value at one place, by `seed`: runs that are alike are sampled differently, and
        know more together."""
        rows = len(line)
        if not rows:
            none = np.zeros(0, np.int64)
            return cls(0, (), none, none)
        step = max(1, -(-rows // samples))
        places = np.unique(np.append(np.arange((step // 2 + seed) % step, rows, step), rows - 1))
        known = places[places < len(line.values)]
        picked = line.values[known]
        if len(picked):
            same = (picked[1:] == picked[:-1]) | ((picked[1:] != picked[1:]) & (picked[:-1] != picked[:-1]))  # NaN
            picked = picked[np.append(True, ~same)]
        lower = np.searchsorted(line.values, picked, "left").astype(np.int64)
        upper = np.searchsorted(line.values, picked, "right").astype(np.int64)
        values = tuple(picked.tolist())
        if line.nulls:
            values += (None,)
            lower, upper = np.append(lower, len(line.values)), np.append(upper, rows)
        return cls(rows, values, lower, upper)


@dataclass(frozen=True)
class Merged:
    """The samples of all runs as one: about how many rows of the whole line come before and up to each value."""

    rows: int
    values: tuple[Any, ...]
    before: npt.NDArray[np.float64]
    through: npt.NDArray[np.float64]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Merged:
        values, numbers = _ranked([sample.values for sample in samples])
        before, through = np.zeros(len(values) + 1), np.zeros(len(values) + 1)
        for sample, own in zip(samples, numbers, strict=True):
            if not sample.rows:
                continue
            # a value that is not in a sample lies between two that are: half-way, for all one knows
            between = (np.append(0, sample.upper) + np.append(sample.lower, sample.rows)) / 2
            between[0], between[-1] = 0 if sample.lower[0] == 0 else between[0], sample.rows
            before[0] += between[0]
            through[0] += between[0]
            np.add.at(before, own, sample.lower - between[:-1])
            np.add.at(before, own + 1, between[1:] - sample.lower)
            np.add.at(through, own, sample.upper - between[:-1])
            np.add.at(through, own + 1, between[1:] - sample.upper)
        return cls(
            sum(sample.rows for sample in samples),
            values,
            np.maximum.accumulate(np.cumsum(before)[:-1]) if values else np.zeros(0),
            np.maximum.accumulate(np.cumsum(through)[:-1]) if values else np.zeros(0),
        )


def _ranked(lists: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], list[Positions]]:
    """All values in order, and the place among them of each list's."""
    known = {value for values in lists for value in values if value is not None and not _is_nan(value)}
    odd = [value for values in lists for value in values if _is_nan(value)][:1]
    ordered = (*sorted(known), *odd)
    if any(None in values[-1:] for values in lists):
        ordered += (None,)
    place = {value: number for number, value in enumerate(ordered)}
    nan = len(known)
    return ordered, [
        np.array([nan if _is_nan(value) else place[value] for value in values], np.int64) for values in lists
    ]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
