"""Where samples come from: what every source promises, and how a user's data becomes one."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from shoal.core.config import LoaderSettings
from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError
from shoal.core.order import Indices, Order, WholeOrder
from shoal.data.request import Batch, Loaded, Request
from shoal.data.sample_schema import SampleField, sample_of, schema_of

__all__ = ["Batch", "Source", "open_source"]

_ACCEPTED = (
    "give a map-style torch Dataset (with __len__ and __getitem__) or an IterableDataset, a tuple or dict of tensors "
    "or arrays that have the same first dimension, a single tensor, a list of samples such as (x, y), a pandas data "
    "frame, a pyarrow Table, a Hugging Face dataset, or a shoal.data.Source"
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

    def __getitem__(self, index: int) -> Any:
        """Sample number `index`, to look at: as it is in epoch 0 of a run with seed 0. For many, `fetch` is quicker."""
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"sample {position} of {len(self)}")
        return sample_of(self.fetch(np.asarray([position % len(self)], dtype=np.int64), 0, 0))

    def __repr__(self) -> str:
        try:
            fields = ", ".join(map(str, self.schema))
        except Exception as error:  # what is printed to find a fault must not fail by it
            fields = f"cannot be read: {error}"
        return f"<{type(self).__name__} of {len(self):,} samples ({fields})>"

    @property
    def schema(self) -> tuple[SampleField, ...]:
        """Name, type and shape of each part of a sample, read off the first one."""
        return schema_of(self.fetch(np.zeros(1, dtype=np.int64), 0, 0), self.column_names)

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """Of the parts of a sample; None where they have no names but those of a dict."""
        return None

    def sampled(self) -> Source:
        """A source of the same kind of samples, a few of which may be looked at before a run begins."""
        return self

    def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
        """In which order epochs visit the samples. `batches` says how a run cuts them, which is the same for any number
        of workers: a source that is read in large pieces can see to it that a worker needs few of them."""
        return WholeOrder(seed, len(self), shuffle)

    @property
    def grouped(self) -> str | None:
        """Why samples that are fetched together have something to do with each other, in a few words: such a source is
        asked for exactly one grain at a time. None where each sample is what it is in any company."""
        return None

    @property
    def digest(self) -> str | None:
        """What two workers, and two runs of which one goes on with the other, must have in common; None where that is
        not known."""
        return None

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
        processes for it. A process that was forked begins with `read_elsewhere`."""
        return self._read_elsewhere

    @property
    def read_elsewhere(self) -> int:
        """The part of `bytes_read` that other processes have fetched."""
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
    source = as_source(data, name)
    from shoal.data.following import FollowingSource

    if isinstance(source, FollowingSource):
        return source
    if len(source) == 0:
        raise ConfigError(f"the {name} data is empty: give at least one sample")
    return source


def as_source(data: object, name: str) -> Source:
    """As `open_source`, but there may be no samples."""
    return data if isinstance(data, Source) else _make_source(data, name)


def _make_source(data: object, name: str) -> Source:
    from shoal.data.columns import ColumnSource
    from shoal.data.libraries import open_of_library
    from shoal.data.mapped import MappedSource
    from shoal.data.streams import StreamSource
    from shoal.data.tensors import TensorSource

    found = open_of_library(data, name)
    if found is not None:
        return found
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, torch.Tensor | np.ndarray):
        return TensorSource(data, name)
    if isinstance(data, list) and data and all(isinstance(sample, tuple | list | Mapping) for sample in data):
        return MappedSource(data, name)
    if isinstance(data, tuple | list):
        return TensorSource(_rows(data, name), name)
    if isinstance(data, Mapping):
        return ColumnSource(data, name)
    if isinstance(data, IterableDataset):
        return StreamSource(data, name)
    if isinstance(data, DataLoader):
        raise ConfigError(
            f"the {name} data is a DataLoader: give its dataset instead; global_batch says how batches are "
            "cut, loader.processes how many processes read them"
        )
    if _is_map_style(data):
        return MappedSource(data, name)
    raise ConfigError(f"the {name} data is of type {type(data).__name__}: {_ACCEPTED}")


def _rows(data: Sequence[Any], name: str) -> Sequence[Any]:
    if data and all(isinstance(part, torch.Tensor | np.ndarray) for part in data):
        return data
    parts = ", ".join(type(part).__name__ for part in data[:4]) + (", ..." if len(data) > 4 else "")
    raise ConfigError(f"the {name} data is a {type(data).__name__} of ({parts}), not of tensors: {_ACCEPTED}")


def _is_map_style(data: object) -> bool:
    if isinstance(data, str | bytes | type) or not hasattr(data, "__getitem__"):
        return False
    try:
        len(data)  # type: ignore[arg-type]  # whether it has a length is the question
    except (TypeError, NotImplementedError):
        return False
    return True
