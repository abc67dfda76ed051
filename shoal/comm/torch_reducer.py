"""Buckets of gradients that are summed by asynchronous all-reduces of a torch process group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.comm.group import BucketReducer, BucketSpec

if TYPE_CHECKING:
    from shoal.comm.torch_group import TorchGroup


class TorchReducer(BucketReducer):
    """See `BucketReducer`. The process group matches operations by their order, so buckets are started in the
    order of their numbers on every rank, in whatever order they become ready."""

    def __init__(self, group: TorchGroup, buckets: Sequence[BucketSpec], facts: int, device: torch.device) -> None:
        self._group = group
        self._specs = tuple(buckets)
        self.buffers = [torch.zeros(spec.numel, dtype=spec.dtype, device=device) for spec in buckets]
        self._row = torch.zeros(1 + facts, dtype=torch.float64, device=device)  # a weight and the facts
        self._rows = [torch.zeros_like(self._row) for _ in range(group.size)]
        self._marked: set[int] = set()
        self._works: list[dist.Work] = []

    def open(self, weight: float) -> None:
        self._row[0] = weight
        self._marked.clear()
        self._works.clear()

    def ready(self, bucket: int) -> None:
        self._marked.add(bucket)
        while len(self._works) in self._marked:
            self._works.append(self._group.start_all_reduce(self.buffers[len(self._works)]))

    def finish(self, facts: Tensor) -> Tensor:
        since = time.monotonic()
        if len(self._works) < len(self.buffers):
            missing = sorted(set(range(len(self.buffers))) - self._marked)
            raise RuntimeError(f"finish() before ready() of buckets {missing}")
        what, number = "the sum of gradients", self._group.arrive()
        self._row[1:] = facts
        exchange = self._group.start_all_gather(self._rows, self._row)
        for work in (*self._works, exchange):
            self._group.complete(work, what, number, since)
        rows = torch.stack(self._rows).cpu()
        total = 0.0
        for weight in rows[:, 0].tolist():  # in the order of ranks, so that all divide by the same bits
            total += weight
        if total != 0:
            for spec, buffer in zip(self._specs, self.buffers, strict=True):
                if spec.divided:
                    buffer.mul_(1.0 / total)
        return rows[:, 1:].clone()
