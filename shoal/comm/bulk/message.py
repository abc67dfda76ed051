"""A message: a small head of plain values, and arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.comm.bulk.errors import BadMessage

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

MAX_HEAD_BYTES = 1 << 20  # packed
MAX_ARRAYS = 1 << 16
MAX_MESSAGE_BYTES = 1 << 36  # of arrays
_MAX_DIMENSIONS = 32
_NUMBERS = re.compile(r"[<>|][biufc](1|2|4|8|16)")  # no objects, no strings, no records


@dataclass(slots=True)
class Message:
    """`head`: string keys, and values that msgpack can carry (at most 1 MiB packed; tuples arrive as lists, keys of
    maps are strings or integers). `arrays`: of numbers; C-contiguous ones travel without a copy where that is possible.

    `freeze`: the arrays may change as soon as the message is handed over. Otherwise they must stay as they are until it
    is answered, or, for an answer, for good.
    """

    head: dict[str, Any]
    arrays: Sequence[Array] = field(default_factory=list)
    freeze: bool = False


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What is known of an array before it arrives."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, array: Array) -> ArraySpec:
        """Raises `BadMessage` for what cannot be sent."""
        if not isinstance(array, np.ndarray):
            raise BadMessage(f"a {type(array).__name__} cannot be sent: only NumPy arrays can")
        return _spec(array.dtype.str, array.shape)

    @classmethod
    def parse(cls, name: Any, shape: Any) -> ArraySpec:
        """From the wire. Raises `BadMessage` for anything that `of` would not have made."""
        if type(name) is not str or type(shape) is not list:
            raise BadMessage("an array without a proper type and shape")
        try:
            return _spec(name, tuple(shape))
        except TypeError:  # something in the shape cannot even be looked up
            raise BadMessage("an array without a proper type and shape") from None

    def fits(self, array: Array) -> bool:
        """Whether such an array can be received into `array`."""
        flags = array.flags
        return array.dtype == self.dtype and array.shape == self.shape and flags.c_contiguous and flags.writeable

    def read(self, data: memoryview) -> Array:
        """A copy of the array in the first bytes of `data`."""
        if self.nbytes == 0:
            return np.empty(self.shape, self.dtype)
        return np.frombuffer(data[: self.nbytes], self.dtype).reshape(self.shape).copy()

    def over(self, memory: Bytes) -> Array:
        """The array in the first bytes of `memory`."""
        return memory[: self.nbytes].view(self.dtype).reshape(self.shape)


@lru_cache(maxsize=4096)
def _spec(name: str, shape: tuple[int, ...]) -> ArraySpec:
    """Kept, as the same arrays come again and again."""
    if not _NUMBERS.fullmatch(name):
        raise BadMessage(f"arrays of {name!r:.40} are not sent: only of booleans and numbers")
    if len(shape) > _MAX_DIMENSIONS or not all(type(one) is int and 0 <= one <= MAX_MESSAGE_BYTES for one in shape):
        raise BadMessage(f"no array has the shape {shape!r:.80}")
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise BadMessage(f"there are no arrays of {name!r:.40}") from None
    nbytes = dtype.itemsize * math.prod(shape)
    if nbytes > MAX_MESSAGE_BYTES:
        raise BadMessage(f"an array of {nbytes} bytes is too large")
    return ArraySpec(dtype, shape, nbytes)


def contiguous(array: Array) -> Array:
    """`array` itself if its bytes lie in order, else a copy of it."""
    return array if array.flags.c_contiguous else array.copy(order="C")


def flat_bytes(array: Array) -> Bytes:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8)


def flat_view(array: Array) -> memoryview:
    """The same, for a socket."""
    return memoryview(flat_bytes(array).data)


def frozen(array: Array, buffer: Callable[[int], Bytes]) -> Array:
    """A copy that nobody changes, in memory of `buffer`."""
    if array.nbytes == 0:
        return array
    copy = ArraySpec.of(array).over(buffer(array.nbytes))
    copy[...] = array
    return copy
