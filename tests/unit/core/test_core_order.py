"""The order of samples and all seeds are pure functions, well mixed, and stable for ever."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.order import epoch_order
from shoal.core.seeds import grain_seed, init_seed, mix, order_seed, sample_seed

pytestmark = pytest.mark.unit

GOLDEN_ORDER = [3, 7, 4, 1, 2, 6, 9, 5, 0, 8]
GOLDEN_SEEDS = [
    8209144101044227569,
    8489260245070576453,
    17130882410464416829,
    10872300823903301744,
    423331506814544672,
]


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(1, 300))
def test_an_epoch_visits_every_sample_once(seed: int, epoch: int, samples: int) -> None:
    order = epoch_order(seed, epoch, samples)
    assert np.array_equal(np.sort(order), np.arange(samples))


def test_the_order_depends_on_seed_and_epoch() -> None:
    orders = {epoch_order(seed, epoch, 50).tobytes() for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_the_order_is_stable_across_machines_and_versions() -> None:
    assert epoch_order(0, 0, 10).tolist() == GOLDEN_ORDER


def test_without_shuffling_samples_come_as_they_lie() -> None:
    assert epoch_order(5, 3, 6, shuffle=False).tolist() == [0, 1, 2, 3, 4, 5]


def test_nobody_can_change_the_order() -> None:
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(0, 0, 10)[0] = 3


def test_the_order_has_no_bias() -> None:
    """Over 2,000 epochs of 8 samples each stands in each place about 250 times (six standard deviations: 90)."""
    counts = np.zeros((8, 8), dtype=int)
    for epoch in range(2000):
        counts[np.arange(8), epoch_order(1, epoch, 8)] += 1
    assert counts.min() > 160
    assert counts.max() < 340


def test_seeds_are_stable() -> None:
    assert [mix(1, 2, 3), order_seed(0, 0), grain_seed(0, 0, 0), sample_seed(0, 0, 0), init_seed(0)] == GOLDEN_SEEDS


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_mixing_gives_64_bits_and_looks_at_every_part(parts: list[int]) -> None:
    value = mix(*parts)
    assert 0 <= value < 2**64
    for at in range(len(parts)):
        changed = [*parts]
        changed[at] ^= 1
        assert mix(*changed) != value


def test_seeds_of_different_uses_differ() -> None:
    assert len({order_seed(3, 4), grain_seed(3, 4, 0), sample_seed(3, 4, 0), mix(4, 3)}) == 4


def test_seeds_of_neighbouring_grains_share_no_pattern() -> None:
    """Half of the bits change from one grain to the next, on average."""
    seeds = [grain_seed(0, step, grain) for step in range(20) for grain in range(50)]
    assert len(set(seeds)) == 1000
    flips = [bin(a ^ b).count("1") for a, b in itertools.pairwise(seeds)]
    assert 30 < sum(flips) / len(flips) < 34
