"""Partitions that deal rows out one by one, and the one that keeps the order of the source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.data.partition.sample import Positions

Shards = npt.NDArray[np.int32]


def round_robin(first: int, rows: int, shards: int) -> Shards:
    """The shard of each of `rows` rows, of which the first is row number `first` of all."""
    return ((first + np.arange(rows, dtype=np.int64)) % shards).astype(np.int32)


def serpentine(first: int, rows: int, shards: int) -> Shards:
    """As `round_robin`, but back and forth: of rows that are sorted by a score, every shard gets its part of the
    highest, and the sums differ by little."""
    place = (first + np.arange(rows, dtype=np.int64)) % (2 * shards)
    return np.where(place < shards, place, 2 * shards - 1 - place).astype(np.int32)


def blocks(rows: Sequence[int], nbytes: Sequence[int], parts: int) -> list[int]:
    """Cut a sequence of stretches of rows (each with its rows and bytes) into `parts` blocks of equal bytes, at the
    borders of rows: the numbers of the ``parts - 1`` rows before which it is cut."""
    row_ends = np.append(0, np.cumsum(rows))
    byte_ends = np.append(0.0, np.cumsum(np.asarray(nbytes, np.float64)))
    targets = byte_ends[-1] * np.arange(1, parts) / parts
    found: list[int] = np.rint(np.interp(targets, byte_ends, row_ends)).astype(np.int64).tolist()
    return found


def grouped(shards: Shards, count: int) -> tuple[Positions, Positions]:
    """The order that brings the rows of each shard together (stable), and how many rows each has."""
    return np.argsort(shards, kind="stable").astype(np.int64), np.bincount(shards, minlength=count).astype(np.int64)
