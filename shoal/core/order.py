"""The order of samples: a pure function of (seed, epoch), stable across machines and versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.core.seeds import order_seed

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mixing:
    """How well an order mixes. `quality`: how many different pieces of the data set a batch draws from, over how many
    it would draw from if all samples were shuffled at once; 1 is as good as that. `words` say it to people."""

    quality: float
    words: str


class Order(ABC):
    """In which order the epochs of a run visit the samples of a source: a permutation for each."""

    @abstractmethod
    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """The numbers of the samples at positions ``[start, stop)`` of `epoch` (read-only)."""

    def split(self, start: int, stop: int, parts: int) -> list[tuple[int, int]]:
        """Cut positions into so many ranges, some perhaps empty, such that each has its own part of the data set to
        read from, the same at every call. Empty where that cannot be."""
        return []

    @property
    def mixing(self) -> Mixing | None:
        """How well it mixes, where that is not simply as well as can be."""
        return None


@dataclass(frozen=True)
class WholeOrder(Order):
    """Any sample may come at any position; without `shuffle`, in the order of their numbers."""

    seed: int
    samples: int
    shuffle: bool = True

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        return epoch_order(self.seed, epoch, self.samples, self.shuffle)[start:stop]


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, samples: int, shuffle: bool = True) -> Indices:
    """Return the permutation of ``range(samples)`` in which `epoch` visits the data set (read-only).

    Built from the raw words of a counter-based generator and a stable sort, whose results NumPy promises to keep,
    and not from `Generator.permutation`, whose results it does not.
    """
    if shuffle:
        words = np.random.Philox(key=order_seed(seed, epoch)).random_raw(samples)
        order = np.argsort(words, kind="stable").astype(np.int64)
    else:
        order = np.arange(samples, dtype=np.int64)
    order.setflags(write=False)
    return order


def digest(indices: Indices) -> int:
    """A number by which two lists of samples can be told apart, whatever their order; exact as a float64."""
    return int(_marks(indices).sum())


def digests(lists: Sequence[Indices]) -> list[int]:
    """The digest of each of many lists, none of them empty."""
    if not lists:
        return []
    starts = np.cumsum([0, *map(len, lists[:-1])])
    found: list[int] = np.add.reduceat(_marks(np.concatenate(lists)), starts).tolist()
    return found


def _marks(indices: Indices) -> Indices:
    return ((indices + 1) * 2_654_435_761) & 0x3FFF_FFFF
