"""A group of one: every sum is its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.comm.group import BucketReducer, BucketSpec, Group


class SoloReducer(BucketReducer):
    def __init__(self, buckets: Sequence[BucketSpec]) -> None:
        self._specs = tuple(buckets)
        self.buffers = [torch.zeros(spec.numel, dtype=spec.dtype) for spec in buckets]
        self._weight = 0.0

    def open(self, weight: float) -> None:
        self._weight = weight

    def ready(self, bucket: int) -> None:
        if self._specs[bucket].divided and self._weight != 0:
            self.buffers[bucket].mul_(1.0 / self._weight)

    def reduced(self, bucket: int) -> bool:
        return True

    def finish(self, facts: Tensor) -> Tensor:
        return facts.unsqueeze(0).clone()


class SoloGroup(Group):
    """A single worker."""

    def __init__(self) -> None:
        self.rank, self.size, self.backend = 0, 1, "none"

    def all_reduce(self, tensor: Tensor, what: str) -> None:
        pass

    def broadcast(self, tensor: Tensor, source: int, what: str) -> None:
        pass

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        return [payload]

    def reducer(self, buckets: Sequence[BucketSpec], facts: int) -> BucketReducer:
        return SoloReducer(buckets)

    def close(self) -> None:
        pass
