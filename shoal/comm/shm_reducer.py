"""Buckets of gradients that lie in shared memory and are summed where they lie.

Every rank maps every rank's buffers. Step t of bucket b:

1. rank r writes its buffer and sets `ready[r][b] = t`;
2. whoever sees all ranks ready sums its own share of the bucket over all buffers, in the order of ranks,
   divides it, writes it to all buffers and sets `done[r][b] = t`;
3. the bucket is complete when all are done.

There is no second thread: with as many ranks as cores it would only take cycles from backward. A rank does
its shares inside `ready`, between two pieces of backward, and the rest in `finish`.

Why no word is overwritten too early. A rank leaves `finish` of t only when all are done with all buckets and
all facts of t are there. So when a rank writes its buffers for t+1, nobody reads or writes buffers of t. A
slower rank may still be in `finish` of t, where it reads `done` (which cannot move on: t+1 needs that rank's
`ready`), the step words (compared by >=) and the facts of t. Facts and weights therefore alternate between
two places by the parity of the step. Two are enough: a rank writes those of t+2 after it left `finish` of
t+1, hence after all ranks entered that `finish`, hence after all left `finish` of t.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.comm.group import BucketReducer, BucketSpec
from shoal.comm.patience import Patience
from shoal.comm.shm_segment import LINE_BYTES, Window, round_up

PIECE_BYTES = 128 << 10  # worked on at a time: the pieces of two ranks stay in the second-level cache
_LINE_WORDS = LINE_BYTES // 8
_SHARE_ELEMENTS = 16  # shares end on multiples of it: no cache line is written by two ranks (for 4-byte elements)


def share(numel: int, rank: int, size: int) -> tuple[int, int]:
    """The part `[begin, end)` of `numel` elements that `rank` of `size` sums; empty for the last ranks of
    few."""
    each = round_up(-(-numel // size), _SHARE_ELEMENTS)
    return min(rank * each, numel), min((rank + 1) * each, numel)


class ShmReducer(BucketReducer):
    """See `BucketReducer`. Buffers stay valid memory for as long as someone holds one of them."""

    def __init__(
        self,
        window: Window,
        patience: Patience,
        rank: int,
        size: int,
        buckets: Sequence[BucketSpec],
        facts: int,
    ) -> None:
        self._patience, self._rank, self._size = patience, rank, size
        self._divided = [spec.divided for spec in buckets]
        self._step = 0
        self._marked: list[int] = []  # buckets that this rank has written and not yet done its share of
        self._awaited: list[tuple[memoryview[int], int]] = []

        flag_words = round_up(max(len(buckets), 1), _LINE_WORDS)
        fact_words = round_up(1 + facts, _LINE_WORDS)  # a weight and the facts
        all_words = size * (2 * flag_words + _LINE_WORDS + 2 * fact_words)
        header_bytes = round_up(all_words * 8, mmap.PAGESIZE)
        offsets, data_bytes = _offsets(buckets)
        own = (header_bytes + rank * data_bytes, data_bytes)
        self._range = window.take(header_bytes + size * data_bytes, own)
        self._range.settled = True  # nobody touches a buffer before its owner's first `ready`

        words = memoryview(self._range)[: all_words * 8].cast("q")
        self._ready, words = _rows(words, size, flag_words)
        self._done, words = _rows(words, size, flag_words)
        self._entered, words = _rows(words, size, _LINE_WORDS)
        numbers = np.frombuffer(words, dtype=np.float64).reshape(2, size, fact_words)
        self._weights, self._facts = numbers[:, :, 0], numbers[:, :, 1 : 1 + facts]
        self._all_flags = [(row, b) for row in self._done for b in range(len(buckets))]
        self._all_flags += [(row, 0) for row in self._entered]

        memory = torch.from_numpy(np.frombuffer(self._range, dtype=np.uint8))
        everyone = [_buffers(memory[header_bytes + r * data_bytes :], offsets, buckets) for r in range(size)]
        self.buffers = everyone[rank]
        self._pieces = [_pieces(of_bucket, rank) for of_bucket in zip(*everyone, strict=True)]
        dtypes = {spec.dtype for spec in buckets}
        self._sums = {dtype: torch.empty(PIECE_BYTES // dtype.itemsize, dtype=dtype) for dtype in dtypes}

    def open(self, weight: float) -> None:
        self._range.settled = False
        self._step += 1
        self._weights[self._step % 2, self._rank] = weight
        self._unmarked = set(range(len(self.buffers)))
        self._inverse: float | None = None

    def ready(self, bucket: int) -> None:
        self._unmarked.remove(bucket)
        self._ready[self._rank][bucket] = self._step
        self._marked.append(bucket)
        self._reduce_available()

    def reduced(self, bucket: int) -> bool:
        if self._marked:
            self._reduce_available()
        return all(row[bucket] >= self._step for row in self._done)

    def finish(self, facts: Tensor) -> Tensor:
        since = time.monotonic()
        if self._unmarked:
            raise RuntimeError(f"finish() before ready() of buckets {sorted(self._unmarked)}")
        parity = self._step % 2
        self._facts[parity, self._rank] = facts.numpy()
        self._entered[self._rank][0] = self._step
        self._awaited = self._all_flags.copy()
        if not self._complete():
            self._patience.wait(self._complete, self._missing, "the sum of gradients", since)
        self._range.settled = True
        return torch.from_numpy(self._facts[parity].copy())

    def _complete(self) -> bool:
        """Do what can be done; true when nothing is left to wait for."""
        if self._marked:
            self._reduce_available()
        step, awaited = self._step, self._awaited
        while awaited:
            row, at = awaited[-1]
            if row[at] < step:
                return False
            awaited.pop()
        return True

    def _missing(self) -> list[int]:
        """The ranks that have not come to `finish`, or else those that came and did not do their share."""
        absent = [r for r, row in enumerate(self._entered) if row[0] < self._step]
        buckets = range(len(self.buffers))
        return absent or [r for r, row in enumerate(self._done) if any(row[b] < self._step for b in buckets)]

    def _reduce_available(self) -> None:
        step = self._step
        for bucket in self._marked.copy():
            if all(row[bucket] >= step for row in self._ready):
                self._reduce(bucket)
                self._done[self._rank][bucket] = step
                self._marked.remove(bucket)

    def _reduce(self, bucket: int) -> None:
        """Sum this rank's share of `bucket`. Weights of the step are there: each came before its rank's
        `ready`."""
        factor = self._factor() if self._divided[bucket] else 1.0
        if self._size == 2:
            self._reduce_pair(bucket, factor)
            return
        sums = self._sums[self.buffers[bucket].dtype]
        for parts in self._pieces[bucket]:
            total = sums[: parts[0].numel()]
            total.copy_(parts[0])
            for part in parts[1:]:
                total.add_(part)
            if factor != 1.0:
                total.mul_(factor)
            for part in parts:
                part.copy_(total)

    def _reduce_pair(self, bucket: int, factor: float) -> None:
        """The same for two ranks, without a place for the sum: it grows in this rank's own buffer."""
        rank = self._rank
        for parts in self._pieces[bucket]:
            mine, theirs = parts[rank], parts[1 - rank]
            torch.add(parts[0], parts[1], out=mine)
            if factor != 1.0:
                torch.mul(mine, factor, out=theirs)
                mine.copy_(theirs)
            else:
                theirs.copy_(mine)

    def _factor(self) -> float:
        """One over the sum of all weights, in float64 and in the order of ranks; 1 where the sum is zero."""
        if self._inverse is None:
            total = 0.0
            for weight in self._weights[self._step % 2].tolist():
                total += weight
            self._inverse = 1.0 / total if total != 0 else 1.0
        return self._inverse


def _offsets(buckets: Sequence[BucketSpec]) -> tuple[list[int], int]:
    """Where each bucket begins in a rank's data, each on its own cache line, and how long the data is."""
    offsets, end = [], 0
    for spec in buckets:
        offsets.append(end)
        end = round_up(end + spec.numel * spec.dtype.itemsize, LINE_BYTES)
    return offsets, round_up(end, mmap.PAGESIZE)


def _rows(words: memoryview[int], size: int, length: int) -> tuple[list[memoryview[int]], memoryview[int]]:
    """Cut a row of `length` words for each rank off `words`; returns them and the rest."""
    return [words[r * length : (r + 1) * length] for r in range(size)], words[size * length :]


def _buffers(data: Tensor, offsets: Sequence[int], buckets: Sequence[BucketSpec]) -> list[Tensor]:
    """The buckets in one rank's data."""
    return [
        data[offset : offset + spec.numel * spec.dtype.itemsize].view(spec.dtype)
        for offset, spec in zip(offsets, buckets, strict=True)
    ]


def _pieces(buffers: Sequence[Tensor], rank: int) -> list[tuple[Tensor, ...]]:
    """This rank's share of one bucket, cut into pieces: each as seen in all ranks' buffers."""
    begin, end = share(buffers[0].numel(), rank, len(buffers))
    if begin == end:
        return []
    elements = PIECE_BYTES // buffers[0].element_size()
    spans = [(at, min(at + elements, end)) for at in range(begin, end, elements)]
    return [tuple(buffer[start:stop] for buffer in buffers) for start, stop in spans]
