"""Sources made of another source: the same samples, each changed on its way out."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Generator, Iterable
from typing import Self

from shoal.core.config import LoaderSettings
from shoal.core.cursor import Batches
from shoal.core.order import Indices, Order
from shoal.data.request import Batch, Loaded, Request
from shoal.data.source import Source


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

    @property
    def mark(self) -> str:
        return self.source.mark

    def complaints(self) -> list[str]:
        return self.source.complaints()

    def sampled(self) -> Self:
        return self._over(self.source.sampled())

    def under(self, settings: LoaderSettings) -> Self:
        return self._over(self.source.under(settings))

    def _over(self, source: Source) -> Self:
        other = copy.copy(self)
        other.source = source
        return other

    def stream(
        self, order: Order, seed: int, requests: Iterable[Request], *, epochs: int | None = None, ahead: bool = True
    ) -> Generator[Loaded, None, None]:
        if type(self.source).stream is Source.stream:  # nothing is read ahead: `fetch` may know a shorter way
            yield from super().stream(order, seed, requests, epochs=epochs, ahead=ahead)
            return
        for loaded in self.source.stream(order, seed, requests, epochs=epochs, ahead=ahead):
            batch = loaded.batch
            if len(loaded.indices):
                batch = self.change(batch, loaded.indices, loaded.request.epoch, seed)
            yield Loaded(loaded.request, loaded.indices, batch)

    def readable(self, indices: Indices) -> Indices:
        return self.source.readable(indices)

    @property
    def bytes_read(self) -> int:
        return self.source.bytes_read

    @property
    def read_elsewhere(self) -> int:
        return self.source.read_elsewhere

    def add_bytes_read(self, nbytes: int) -> None:
        self.source.add_bytes_read(nbytes)
