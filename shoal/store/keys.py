"""What a store holds: dense arrays, tables of which single rows are read and written, and slices of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.core.errors import ConfigError

_KINDS = "biuf"  # booleans and numbers whose bytes mean the same everywhere


@dataclass(frozen=True)
class DenseKey:
    """An array that is read and written whole. It may be cut anywhere, unless `whole` forbids it: what updates it then
    looks at all of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    whole: bool = False

    def __post_init__(self) -> None:
        _check(self.name, self.shape, self.dtype)

    @property
    def units(self) -> int:
        """How many units it can be cut into: its elements."""
        return math.prod(self.shape)

    @property
    def unit_shape(self) -> tuple[int, ...]:
        return ()

    @cached_property
    def unit_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class SparseKey:
    """A table of `rows` rows of `row_shape`, read and written by row numbers. It is cut between rows only."""

    name: str
    rows: int
    row_shape: tuple[int, ...]
    dtype: str = "float32"
    whole: bool = False

    def __post_init__(self) -> None:
        _check(self.name, (self.rows, *self.row_shape), self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.row_shape)

    @property
    def units(self) -> int:
        """How many units it can be cut into: its rows."""
        return self.rows

    @property
    def unit_shape(self) -> tuple[int, ...]:
        return self.row_shape

    @cached_property
    def unit_bytes(self) -> int:
        return math.prod(self.row_shape) * np.dtype(self.dtype).itemsize


Key = DenseKey | SparseKey


@dataclass(frozen=True)
class Slice:
    """Units ``[start, stop)`` of a key: elements of the flattened array, or rows of a table."""

    key: Key
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop <= self.key.units:
            raise ConfigError(f"the slice {self.label} is not within its key, which has {self.key.units} units")

    @cached_property
    def label(self) -> str:
        """Its name in operations, unique in a store: ``weights[0:4096]``."""
        return f"{self.key.name}[{self.start}:{self.stop}]"

    @property
    def units(self) -> int:
        return self.stop - self.start

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array that a server keeps for it: flat for a dense key, rows for a table."""
        return (self.units, *self.key.unit_shape)

    @cached_property
    def nbytes(self) -> int:
        return self.units * self.key.unit_bytes

    @property
    def sparse(self) -> bool:
        return isinstance(self.key, SparseKey)


def _check(name: str, shape: tuple[int, ...], dtype: str) -> None:
    if not name:
        raise ConfigError("a key of the store has no name: give it one")
    if any(size < 0 for size in shape):
        raise ConfigError(f"key {name!r} has the shape {shape}: sizes are 0 or more")
    try:
        known = np.dtype(dtype)
    except TypeError:
        known = np.dtype(object)
    if known.kind not in _KINDS or known.name != dtype:
        raise ConfigError(f"key {name!r} has the dtype {dtype!r}: the store holds numbers, such as float32 or int64")
