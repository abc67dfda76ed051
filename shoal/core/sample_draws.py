"""Random numbers that belong to samples: each is a pure function of (call, sample, place within the sample).

A *call* is a number that stands for one use of a layer in one step; whoever computes a sample draws the same for it.
Numbers are hashes of where they stand (splitmix64), so they come as quickly for many small samples as for few large
ones, and on any machine. A place is counted along each dimension on its own: the numbers of a text do not change when
it is padded to another length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.many_seeds import Words
from shoal.core.seeds import GOLDEN

_BLOCK = 1 << 14  # words that are hashed at a time: they stay in the cache
_GOLDEN, _FIRST, _SECOND = np.uint64(GOLDEN), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_ROUGH = 1e-3  # how far, as a part of it, a probability may be off to be compared with 16 bits instead of 32
Samples = npt.NDArray[np.int64]


def row_keys(call: int, samples: Samples, leading: Sequence[int]) -> Words:
    """One key for each row of ``[samples, *leading, length]``, in that order, as a flat array."""
    keys = _scramble(samples.astype(np.uint64) ^ np.uint64(call))
    for size in leading:
        if size != 1:  # the first place of a dimension has the key that there would be without it
            places = _scramble(keys[:, None] ^ np.arange(size, dtype=np.uint64))
            places[:, :1] = keys[:, None]
            keys = places.reshape(-1)
    return keys


def fill_kept(out: npt.NDArray[np.generic], keys: Words, keep: float) -> None:
    """Write 1 with probability `keep` and 0 else to each element of `out`, which has one row for each key. Numbers of
    any type, or booleans."""
    drop = 1.0 - keep
    rough = abs(round(drop * (1 << 16)) / (1 << 16) - drop) <= _ROUGH * min(drop, keep)
    lane = np.dtype(np.uint16 if rough else np.uint32)
    border = round(drop * (1 << 8 * lane.itemsize))
    if border >= 1 << 8 * lane.itemsize:
        out[...] = False
        return
    for rows, columns, drawn in _blocks(keys, out.shape[1], lane):
        np.greater_equal(drawn, lane.type(border), out=out[rows, columns], casting="unsafe")


def fill_uniform(out: npt.NDArray[np.generic], keys: Words) -> None:
    """Write a number of ``[0, 1)`` to each element of `out`, of float32 or float64, which has one row for each key."""
    wide = out.dtype == np.float64
    lane, bits = np.dtype(np.uint64 if wide else np.uint32), 53 if wide else 24
    spare = lane.type(8 * lane.itemsize - bits)
    for rows, columns, drawn in _blocks(keys, out.shape[1], lane):
        np.multiply(drawn >> spare, out.dtype.type(2.0**-bits), out=out[rows, columns], casting="unsafe")


def _blocks(
    keys: Words, length: int, lane: np.dtype[Any]
) -> Iterator[tuple[slice, slice, npt.NDArray[np.unsignedinteger]]]:
    """Blocks of rows and columns with their random bits. A block is written over by the next."""
    lanes = 8 // lane.itemsize
    words = -(-length // lanes)
    wide = min(max(words, 1), _BLOCK)
    tall = max(1, min(_BLOCK // wide, len(keys)))
    state, shifted = np.empty(tall * wide, dtype=np.uint64), np.empty(tall * wide, dtype=np.uint64)
    for start in range(0, words, wide):
        stop = min(start + wide, words)
        steps = np.arange(start + 1, stop + 1, dtype=np.uint64) * _GOLDEN
        columns = slice(start * lanes, min(stop * lanes, length))
        for top in range(0, len(keys), tall):
            part = keys[top : top + tall]
            size = len(part) * len(steps)
            block = state[:size].reshape(len(part), len(steps))
            np.add(part[:, None], steps, out=block)
            _finish(state[:size], shifted[:size])
            drawn = block.view(lane)[:, : columns.stop - columns.start]
            yield slice(top, top + len(part)), columns, drawn


def _scramble(words: Words) -> Words:
    """What `shoal.core.many_seeds.scramble` does, in memory of its own."""
    state = words + _GOLDEN
    _finish(state, np.empty_like(state))
    return state


def _finish(state: Words, shifted: Words) -> None:
    """The last part of splitmix64, in place."""
    np.right_shift(state, _30, out=shifted)
    np.bitwise_xor(state, shifted, out=state)
    np.multiply(state, _FIRST, out=state)
    np.right_shift(state, _27, out=shifted)
    np.bitwise_xor(state, shifted, out=state)
    np.multiply(state, _SECOND, out=state)
    np.right_shift(state, _31, out=shifted)
    np.bitwise_xor(state, shifted, out=state)
