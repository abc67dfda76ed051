"""Random numbers of samples: the right ones, the same whoever computes them, and independent of each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.many_seeds import scramble
from shoal.core.sample_draws import fill_kept, fill_uniform, row_keys
from shoal.core.seeds import GOLDEN

pytestmark = pytest.mark.unit
Flags = npt.NDArray[np.bool_]


def kept(call: int, samples: npt.ArrayLike, *shape: int, keep: float = 0.9) -> Flags:
    numbers = np.asarray(samples, dtype=np.int64)
    keys = row_keys(call, numbers, shape[:-1])
    out = np.empty((len(keys), shape[-1]), dtype=np.bool_)
    fill_kept(out, keys, keep)
    return out.reshape(len(numbers), *shape)


def uniform(call: int, samples: npt.ArrayLike, *shape: int, kind: type = np.float32) -> npt.NDArray[np.float64]:
    numbers = np.asarray(samples, dtype=np.int64)
    keys = row_keys(call, numbers, shape[:-1])
    out = np.empty((len(keys), shape[-1]), dtype=kind)
    fill_uniform(out, keys)
    return out.reshape(len(numbers), *shape)


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=12),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.data(),
)
def test_a_sample_draws_the_same_in_any_company(samples: list[int], shape: list[int], data: st.DataObject) -> None:
    together = kept(7, samples, *shape)
    at = data.draw(st.integers(0, len(samples) - 1))
    assert (together[at] == kept(7, samples[at : at + 1], *shape)[0]).all()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.lists(st.integers(1, 40), min_size=3, max_size=3))
def test_a_longer_sample_draws_the_same_where_both_are(shape: list[int], longer: list[int]) -> None:
    both = tuple(slice(0, min(a, b)) for a, b in zip(shape, longer, strict=False))
    short, long = kept(3, [5], *shape)[0], kept(3, [5], *longer[: len(shape)])[0]
    assert (short[both] == long[both]).all()


def test_blocks_leave_no_trace() -> None:
    """A row of many blocks and many rows in one block are what each element by itself would be."""
    for samples, length in ((3, 70_001), (5_000, 13)):
        found = kept(11, np.arange(samples), length)
        words = scramble(np.uint64(11) ^ np.arange(samples, dtype=np.uint64))[:, None]
        columns = np.arange(length)
        words = scramble(words + (columns // 4).astype(np.uint64) * np.uint64(GOLDEN))
        expected = (words >> (16 * (columns % 4)).astype(np.uint64) & np.uint64(0xFFFF)) >= round(0.1 * 65536)
        assert (found == expected).all()


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.999, 1 - 1e-5, 1e-4, 0.3])
def test_the_rate_is_what_was_asked_for(keep: float) -> None:
    count = 4_000_000
    rate = kept(1, np.arange(400), 10_000, keep=keep).mean()
    assert abs(rate - keep) < 5 * np.sqrt(keep * (1 - keep) / count)


def test_everything_or_nothing() -> None:
    assert kept(1, [1, 2], 50, keep=1.0).all()
    assert not kept(1, [1, 2], 50, keep=0.0).any()


def test_samples_calls_and_places_are_independent() -> None:
    size = 200_000
    rows = [
        kept(1, [0], size, keep=0.5)[0],
        kept(1, [1], size, keep=0.5)[0],  # another sample
        kept(2, [0], size, keep=0.5)[0],  # another call
        kept(2, [1], size, keep=0.5)[0],
        kept(1, [0], 2, size, keep=0.5)[0, 1],  # another row
        np.roll(kept(1, [0], size, keep=0.5)[0], 1),  # another place
        np.roll(kept(1, [0], size, keep=0.5)[0], 4),
        kept(1, np.arange(size), 1, keep=0.5)[:, 0],  # one number of each of many samples
    ]
    correlation = np.corrcoef(np.array(rows, dtype=np.float64))
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / np.sqrt(size)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_uniform_numbers_are_uniform(kind: type) -> None:
    drawn = uniform(4, np.arange(100), 10_000, kind=kind)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    assert np.abs(counts - 10_000).max() < 5 * np.sqrt(10_000)


def test_other_seeds_of_a_call_share_nothing() -> None:
    """Numbers of calls that lie side by side, as a counter would give, are as good as any."""
    flags = np.array([kept(call, [0], 20_000, keep=0.5)[0] for call in range(40)], dtype=np.float64)
    correlation = np.corrcoef(flags)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 6 / np.sqrt(20_000)
