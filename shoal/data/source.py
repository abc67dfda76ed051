"""Where samples come from: what every source promises, and how a user's data becomes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from shoal.core.config import LoaderSettings
from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError
from shoal.core.order import Indices, Order, WholeOrder
from shoal.data.request import Batch, Loaded, Request

__all__ = ["Batch", "Source", "open_source"]

_ACCEPTED = (
    "give a map-style torch Dataset (with __len__ and __getitem__), a tuple of tensors or arrays that have "
    "the same first dimension, a single tensor, or a shoal.data.Source"
)


class Source(ABC):
    """Samples ``0 .. len-1``. `fetch` is called by one thread at a time, in any process that has a copy."""

    _read_elsewhere = 0

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples; the same at every call."""

    @abstractmethod
    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        """Return these samples (at least one), in this order, as one batch that the caller may change.

        What is drawn for a sample is seeded by `core.seeds.sample_seed(seed, epoch, sample)`, so a sample has
        the same bits in an epoch whoever fetches it and whatever else is in the batch.
        """

    def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
        """In which order epochs visit the samples. `batches` says how a run cuts them, which is the same for any number
        of workers: a source that is read in large pieces can see to it that a worker needs few of them."""
        return WholeOrder(seed, len(self), shuffle)

    def under(self, settings: LoaderSettings) -> Source:
        """The same samples, read as a run says. A source that has nothing to be told is itself."""
        return self

    def stream(
        self, order: Order, seed: int, requests: Iterable[Request], *, epochs: int | None = None, ahead: bool = True
    ) -> Generator[Loaded, None, None]:
        """Yield what each request asks for, in order; requests are drawn in the caller's thread. A source may read in
        the background what will be asked for, but nothing from the epoch with number `epochs` on, and what other
        epochs have only if that number is given; with `ahead` it may draw requests before it is asked for them. By
        default none of that."""
        return (_load(self, order, seed, request) for request in requests)

    def readable(self, indices: Indices) -> Indices:
        """Those of `indices` that can be read, where others are to be left out."""
        return indices

    def complaints(self) -> list[str]:
        """What a user should know of samples that were left out, in words, each said once."""
        return []

    @property
    def mark(self) -> str:
        """Differs where the samples do, as far as a source can say that without reading them."""
        return ""

    @property
    def bytes_read(self) -> int:
        """What was fetched from where the data lies, as far as a source counts it: by this process, and by loader
        processes for it. A process that was forked begins with none."""
        return self._read_elsewhere

    def add_bytes_read(self, nbytes: int) -> None:
        """A process that this one has started has fetched so much."""
        self._read_elsewhere += nbytes


def _load(source: Source, order: Order, seed: int, request: Request) -> Loaded:
    indices = order.at(request.epoch, request.start, request.stop)
    return Loaded(request, indices, source.fetch(indices, request.epoch, seed))


def open_source(data: object, name: str) -> Source:
    """Return the source that `data` is or stands for; `name` ('train', 'test') names it in errors.

    Raises `ConfigError` that says what is accepted.
    """
    source = data if isinstance(data, Source) else _make_source(data, name)
    if len(source) == 0:
        raise ConfigError(f"the {name} data is empty: give at least one sample")
    return source


def _make_source(data: object, name: str) -> Source:
    from shoal.data.mapped import MappedSource
    from shoal.data.tensors import TensorSource

    if isinstance(data, TensorDataset):
        return TensorSource(data.tensors, name)
    if isinstance(data, torch.Tensor | np.ndarray):
        return TensorSource(data, name)
    if isinstance(data, tuple | list):
        if data and all(isinstance(part, torch.Tensor | np.ndarray) for part in data):
            return TensorSource(data, name)
        parts = ", ".join(type(part).__name__ for part in data[:4]) + (", ..." if len(data) > 4 else "")
        raise ConfigError(f"the {name} data is a {type(data).__name__} of ({parts}), not of tensors: {_ACCEPTED}")
    if isinstance(data, IterableDataset):
        raise ConfigError(
            f"the {name} data is an IterableDataset ({type(data).__name__}), whose samples cannot be asked "
            f"for by number: {_ACCEPTED}"
        )
    if isinstance(data, DataLoader):
        raise ConfigError(
            f"the {name} data is a DataLoader: give its dataset instead; global_batch says how batches are "
            "cut, loader.processes how many processes read them"
        )
    if _is_map_style(data):
        return MappedSource(data, name)
    raise ConfigError(f"the {name} data is of type {type(data).__name__}: {_ACCEPTED}")


def _is_map_style(data: object) -> bool:
    if isinstance(data, Mapping | str | bytes | type) or not hasattr(data, "__getitem__"):
        return False
    try:
        len(data)  # type: ignore[arg-type]  # whether it has a length is the question
    except (TypeError, NotImplementedError):
        return False
    return True
