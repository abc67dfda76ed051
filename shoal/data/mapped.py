"""Samples of a map-style dataset: `dataset[i]`, with everything that it draws seeded for sample i."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand
from torch.utils.data import default_collate

from shoal.core.order import Indices
from shoal.core.seeds import sample_seed
from shoal.data.source import Batch, Source


class MappedSource(Source):
    """Reads ``dataset[i]`` and collates the samples with torch's `default_collate`, or with the dataset's own
    ``collate(samples)`` where it has one (which must not draw: it would see how samples are grouped).

    Before each sample the three global generators that augmentation draws from are seeded: torch's default
    generator (CPU), Python's `random` and NumPy's legacy `np.random`. A generator that the dataset keeps for
    itself (`np.random.default_rng()`) is not, and what it draws depends on who reads what.

    After `fetch` the three are as they were, but for a second normal value that NumPy may have kept in hand;
    during it no other thread may draw from them.
    What `dataset[i]` raises passes through with a note that names the sample.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset = dataset
        self._name = name
        self._samples = len(dataset)
        self._collate: Callable[[list[Any]], Batch] = getattr(dataset, "collate", default_collate)
        self._numpy = np.random.MT19937(0)

    def __len__(self) -> int:
        return self._samples

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        samples = []
        with _lent_generators(self._numpy):
            for index in indices.tolist():
                _seed_all(sample_seed(seed, epoch, index))
                try:
                    samples.append(self._dataset[index])
                except Exception as error:
                    error.add_note(f"while reading sample {index} of the {self._name} data")
                    raise
            try:
                return self._collate(samples)
            except Exception as error:
                error.add_note(
                    f"while collating {len(samples)} samples of the {self._name} data (the first is sample "
                    f"{indices[0]}): return tensors of equal shapes, or give the dataset a `collate` method"
                )
                raise


def _seed_all(seed: int) -> None:
    # torch and NumPy use 32 bits and the same algorithm: with the same bits they would draw the same numbers
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed >> 32)
    random.seed(seed)


@contextmanager
def _lent_generators(numpy_bits: np.random.MT19937) -> Iterator[None]:
    """Lend the three generators to a dataset and give them back as they were.

    NumPy's is exchanged for `numpy_bits`: 1 µs, against 110 µs to read and write its state.
    """
    torch_state = torch.default_generator.get_state()
    python_state = random.getstate()
    numpy_before = mtrand.get_bit_generator()
    mtrand.set_bit_generator(numpy_bits)
    try:
        yield
    finally:
        mtrand.set_bit_generator(numpy_before)
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
