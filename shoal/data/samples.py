"""Sources that have their samples one by one, and make batches of them by collating."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from shoal.core.order import Indices
from shoal.data.generators import lent_generators
from shoal.data.source import Batch, Source


class SampleSource(Source):
    """Collates samples with torch's `default_collate`, or with the dataset's own ``collate(samples)`` where it has one
    (which must not draw: it would see how samples are grouped)."""

    def __init__(self, dataset: Any, name: str) -> None:
        self._name = name
        self._collate: Callable[[list[Any]], Batch] = getattr(dataset, "collate", default_collate)
        self.numpy_bits = np.random.MT19937(0)  # lent to samples

    @property
    def collates_by_default(self) -> bool:
        return self._collate is default_collate

    @abstractmethod
    def samples(self, indices: Indices, epoch: int, seed: int) -> list[Any]:
        """These samples, in this order, each with what it draws seeded for it. The generators must be lent."""

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        with lent_generators(self.numpy_bits):
            return self.collate(self.samples(indices, epoch, seed), indices)

    def collate(self, samples: list[Any], indices: Indices) -> Batch:
        """One batch of `samples`, whose numbers are `indices`."""
        try:
            return self._collate(samples)
        except Exception as error:
            error.add_note(
                f"while collating {len(samples)} samples of the {self._name} data (the first is sample "
                f"{indices[0]}): return tensors of equal shapes, or give the dataset a `collate` method"
            )
            raise
