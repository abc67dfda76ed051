"""Samples of a map-style dataset: `dataset[i]`, with everything that it draws seeded for sample i."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.core.errors import UserError
from shoal.core.order import Indices
from shoal.core.seeds import sample_seed
from shoal.data.generators import DrawWatch, lent_generators, seed_all
from shoal.data.samples import SampleSource


class MappedSource(SampleSource):
    """Reads ``dataset[i]`` for each sample, or ``dataset.__getitems__([i, j, ...])`` for many at once.

    Before each sample the three global generators that augmentation draws from are seeded: torch's default
    generator (CPU), Python's `random` and NumPy's legacy `np.random`. A generator that the dataset keeps for
    itself (`np.random.default_rng()`) is not, and what it draws depends on who reads what.

    `__getitems__` is asked for many samples only as long as it draws from none of the three: what it draws could not
    be seeded for a single sample. As soon as it does, the samples are read again, one at a time; so they are where it
    gives no list of samples, but a batch that is collated already.

    What the dataset raises passes through with a note that names the sample.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(dataset, name)
        self._dataset = dataset
        self._samples = len(dataset)
        self._many: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)
        if self._many is not None:
            with lent_generators(self.numpy_bits):
                self._watch = DrawWatch()

    def __len__(self) -> int:
        return self._samples

    def samples(self, indices: Indices, epoch: int, seed: int) -> list[Any]:
        numbers = indices.tolist()
        if self._many is not None:
            self._watch.begin()
            found = self._read_many(self._many, numbers)
            if found is not None and not self._watch.drawn():
                return found
            self._many = None
        return [self._read(number, sample_seed(seed, epoch, number)) for number in numbers]

    def _read(self, number: int, seed: int) -> Any:
        seed_all(seed)
        try:
            return self._dataset[number]
        except Exception as error:
            error.add_note(f"while reading sample {number} of the {self._name} data")
            raise

    def _read_many(self, read: Callable[[list[int]], Any], numbers: list[int]) -> list[Any] | None:
        try:
            found = read(numbers)
        except Exception as error:
            error.add_note(f"while reading {len(numbers)} samples of the {self._name} data, the first {numbers[0]}")
            raise
        if not isinstance(found, list):
            return None
        if len(found) != len(numbers):
            raise UserError(
                f"__getitems__ of the {self._name} data was asked for {len(numbers)} samples and gave {len(found)}: "
                "it must return one for each, in this order"
            )
        return found
