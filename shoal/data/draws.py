"""Random numbers for many samples at once: each row is drawn for its own sample."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from shoal.core.many_seeds import Words, scramble

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """Draws for a batch of samples, whose own 64 bits are `seeds`. Row i depends on seeds[i] and on what was drawn
    before it, never on the other rows: the same sample draws the same numbers in any company.

    There are no normal values here: the last bit of a logarithm may depend on where in a batch it is computed.
    """

    def __init__(self, seeds: Words) -> None:
        self._seeds = seeds
        self._drawn = 0

    def __len__(self) -> int:
        return len(self._seeds)

    def uniform(self, *shape: int) -> Tensor:
        """Float32 from [0, 1), of shape [samples, *shape]."""
        return torch.from_numpy((self._words(shape) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Int64 from [low, high), of shape [samples, *shape]."""
        span = high - low
        assert 0 < span <= 2**32, f"integers({low}, {high}): the range must be 1 to 2**32 wide"
        drawn = (self._words(shape) >> np.uint64(32)) * np.uint64(span) >> np.uint64(32)
        return torch.from_numpy(drawn.astype(np.int64) + low)

    def chance(self, probability: float, *shape: int) -> Tensor:
        """True with this probability, of shape [samples, *shape]."""
        return self.uniform(*shape) < probability

    def _words(self, shape: tuple[int, ...]) -> Words:
        count = math.prod(shape)
        with np.errstate(over="ignore"):
            places = (np.arange(count, dtype=np.uint64) + np.uint64(self._drawn)) * _GOLDEN
            words = scramble(self._seeds[:, None] + places)
        self._drawn += count
        return words.reshape(len(self._seeds), *shape)
