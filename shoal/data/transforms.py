"""Transforms between a source and the model, drawing by law 1: the same bits on any number of workers.

What is done to a sample depends on that sample alone, be it by a plain function for each or by a `Rowwise` for all of
a batch at once; it draws what (seed, epoch, sample) says. What mixes samples sees exactly one grain, and draws what
(seed, epoch, grain) says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import default_collate

from shoal.core.errors import ConfigError
from shoal.core.many_seeds import Words, sample_seeds, stage_seeds
from shoal.core.order import Indices
from shoal.core.seeds import batch_seed, stage_seed
from shoal.data.company import first_of, is_first_of
from shoal.data.draws import Draws
from shoal.data.generators import lent_generators, seed_all
from shoal.data.samples import SampleSource
from shoal.data.source import Batch, Source, open_source
from shoal.data.wrapping import Wrapping

F = TypeVar("F")
SampleFunction = Callable[[Any, torch.Generator], Any]  # a sample and its generator -> a sample
BatchFunction = Callable[[Any, torch.Generator], Any]  # a grain, collated, and its generator -> a batch

_GENERATOR = 1 << 32  # a generator is seeded apart from the global ones, or both would draw the same numbers


class Rowwise(ABC):
    """Does the same to every sample as a plain function would, but for all rows of a batch at once, which is quicker.
    A row of the result must depend only on that row of `batch` and of what is drawn."""

    @abstractmethod
    def __call__(self, batch: Any, draws: Draws) -> Any:
        """The rows of `batch`, transformed; it may be changed in place."""


def transform(
    data: object,
    *,
    per_sample: SampleFunction | Rowwise | Sequence[SampleFunction | Rowwise] = (),
    per_batch: BatchFunction | Sequence[BatchFunction] = (),
) -> Source:
    """Apply functions to the samples of `data`, in this order, whenever they are read.

    A function of `per_sample` gets a sample and a `torch.Generator`, which is seeded by (seed, epoch, sample), as are
    the three global generators meanwhile; or it is a `Rowwise`, such as those of `shoal.data.augment`. A function of
    `per_batch` gets the collated samples of one grain, and a generator seeded for that grain: it may mix samples.
    Grains then go through the model one by one, as with batch normalisation.
    """
    return TransformedSource(open_source(data, "transformed"), _listed(per_sample), _listed(per_batch))


class TransformedSource(Wrapping):
    """What `transform` gives."""

    def __init__(
        self, source: Source, per_sample: Sequence[SampleFunction | Rowwise], per_batch: Sequence[BatchFunction]
    ) -> None:
        super().__init__(source)
        for function in (*per_sample, *per_batch):
            if not callable(function):
                raise ConfigError(f"transform: {function!r} cannot be called: give functions of (sample, generator)")
        for mixing in per_batch:
            if isinstance(mixing, Rowwise):
                raise ConfigError(f"transform: {mixing!r} works on each sample alone: give it as per_sample")
        self._per_sample, self._per_batch = tuple(per_sample), tuple(per_batch)
        self._numpy_bits = np.random.MT19937(0)
        self._tried: set[int] = set()  # stages that were found to treat each row alone

    @property
    def grouped(self) -> str | None:
        if self._per_batch:
            return f"the data is transformed per batch ({_name_of(self._per_batch[0])})"
        return self.source.grouped

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        if not isinstance(self.source, SampleSource):
            return super().fetch(indices, epoch, seed)
        with lent_generators(self._numpy_bits):
            samples = self.source.samples(indices, epoch, seed)
            return self._changed(_Held(self.source, indices, samples=samples), indices, epoch, seed)

    def change(self, batch: Batch, indices: Indices, epoch: int, seed: int) -> Batch:
        with lent_generators(self._numpy_bits):
            return self._changed(_Held(self.source, indices, batch=batch), indices, epoch, seed)

    def _changed(self, held: _Held, indices: Indices, epoch: int, seed: int) -> Batch:
        seeds = sample_seeds(seed, epoch, indices)
        for stage, function in enumerate(self._per_sample):
            own = stage_seeds(seeds, stage)
            if isinstance(function, Rowwise):
                held.batch = self._rowwise(stage, function, held.batch, own)
            else:
                numbers = zip(held.samples, own.tolist(), indices.tolist(), strict=True)
                held.samples = [_call(function, one, bits, f"sample {number}") for one, bits, number in numbers]
        batch = held.batch
        for stage, function in enumerate(self._per_batch):
            bits = stage_seed(batch_seed(seed, epoch, int(indices[0])), stage)
            batch = _call(function, batch, bits, f"the {len(indices)} samples from {indices[0]} on")
        return batch

    def _rowwise(self, stage: int, function: Rowwise, batch: Batch, seeds: Words) -> Batch:
        """The first time, one row is also transformed alone."""
        if stage in self._tried or len(seeds) == 1:
            return _call_rowwise(function, batch, seeds)
        alone = _call_rowwise(function, first_of(batch), seeds[:1])
        changed = _call_rowwise(function, batch, seeds)
        if not is_first_of(alone, changed):
            raise ConfigError(
                f"the transform {_name_of(function)} gives a sample other values among others than alone. A Rowwise "
                "must treat each row alone, and draw from `draws` only: what mixes samples is for per_batch"
            )
        self._tried.add(stage)
        return changed


class _Held:
    """Samples on their way through the stages: one by one or as a batch, as the next stage wants them."""

    def __init__(
        self, source: Source, indices: Indices, *, samples: list[Any] | None = None, batch: Batch = None
    ) -> None:
        self._source, self._indices = source, indices
        self._samples, self._batch = samples, batch

    @property
    def samples(self) -> list[Any]:
        if self._samples is None:
            self._samples = [row_of(self._batch, row) for row in range(len(self._indices))]
        return self._samples

    @samples.setter
    def samples(self, samples: list[Any]) -> None:
        self._samples, self._batch = samples, None

    @property
    def batch(self) -> Batch:
        if self._samples is not None:
            self._batch, self._samples = self._collated(self._samples), None
        return self._batch

    @batch.setter
    def batch(self, batch: Batch) -> None:
        self._samples, self._batch = None, batch

    def _collated(self, samples: list[Any]) -> Batch:
        if isinstance(self._source, SampleSource) and not self._source.collates_by_default:
            return self._source.collate(samples, self._indices)
        if isinstance(self._source, SampleSource):
            return _as_tuples(self._source.collate(samples, self._indices), samples[0])
        return _as_tuples(default_collate(samples), samples[0])


def row_of(batch: Batch, row: int) -> Any:
    """One sample of a collated batch; a list holds its samples as they are."""
    if isinstance(batch, Mapping):
        return {key: row_of(part, row) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(part, row) for part in batch)
    return batch[row]


def _as_tuples(batch: Batch, sample: Any) -> Batch:
    """Columns in tuples, text of many samples in lists: `default_collate` makes now the one, now the other of both."""
    if isinstance(sample, Mapping):
        return {key: _as_tuples(part, sample[key]) for key, part in batch.items()}
    if isinstance(sample, tuple | list):
        return tuple(_as_tuples(part, one) for part, one in zip(batch, sample, strict=True))
    return list(batch) if isinstance(sample, str | bytes) else batch


def _call(function: Callable[[Any, torch.Generator], Any], value: Any, seed: int, what: str) -> Any:
    seed_all(seed)
    generator = torch.Generator()
    generator.manual_seed(stage_seed(seed, _GENERATOR))
    try:
        return function(value, generator)
    except Exception as error:
        error.add_note(f"in the transform {_name_of(function)}, of {what}")
        raise


def _call_rowwise(function: Rowwise, batch: Batch, seeds: Words) -> Batch:
    try:
        return function(batch, Draws(seeds))
    except Exception as error:
        error.add_note(f"in the transform {_name_of(function)}, of {len(seeds)} samples")
        raise


def _listed(functions: F | Sequence[F]) -> Sequence[F]:
    return functions if isinstance(functions, Sequence) else (functions,)


def _name_of(function: object) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
