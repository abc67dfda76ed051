"""Sources made of another source: the same samples, each changed on its way out."""

from __future__ import annotations

from abc import abstractmethod

from shoal.core.cursor import Batches
from shoal.core.order import Indices, Order
from shoal.data.source import Batch, Source


class Wrapping(Source):
    """What `change` makes of the batches of `source`. Everything else is as that one says."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @abstractmethod
    def change(self, batch: Batch, indices: Indices, epoch: int, seed: int) -> Batch:
        """The batch of these samples, which may be changed in place."""

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        return self.change(self.source.fetch(indices, epoch, seed), indices, epoch, seed)

    def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
        return self.source.order(seed, shuffle, batches)

    @property
    def grouped(self) -> str | None:
        return self.source.grouped

    @property
    def digest(self) -> str | None:
        return self.source.digest
