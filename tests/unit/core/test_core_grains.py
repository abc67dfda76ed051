"""Grains cut a global batch in order; shares divide them among workers by weight."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.cursor import Batches, Cursor
from shoal.core.errors import ConfigError
from shoal.core.grains import Grain, cut, shares

pytestmark = pytest.mark.unit

weights_of_workers = st.lists(st.floats(0, 1000), min_size=1, max_size=12).filter(lambda ws: sum(ws) > 1e-6)


@given(st.integers(0, 1000), st.integers(1, 500), st.integers(1, 200))
def test_grains_cover_the_batch_in_order(start: int, samples: int, size: int) -> None:
    grains = cut(start, start + samples, size)
    assert [grain.number for grain in grains] == list(range(len(grains)))
    assert [at for grain in grains for at in range(grain.start, grain.stop)] == list(range(start, start + samples))
    assert all(grain.samples == size for grain in grains[:-1])
    assert 1 <= grains[-1].samples <= size


@given(st.integers(0, 300), weights_of_workers)
def test_shares_are_contiguous_and_complete(count: int, weights: list[float]) -> None:
    found = shares(count, weights)
    assert len(found) == len(weights)
    assert [number for share in found for number in share] == list(range(count))


@given(st.integers(0, 300), weights_of_workers)
def test_a_share_is_within_one_grain_of_its_proportion(count: int, weights: list[float]) -> None:
    for share, weight in zip(shares(count, weights), weights, strict=True):
        assert abs(len(share) - count * weight / sum(weights)) < 1 + 1e-6


@given(st.integers(0, 300), weights_of_workers)
def test_a_worker_of_weight_zero_has_nothing(count: int, weights: list[float]) -> None:
    for share, weight in zip(shares(count, weights), weights, strict=True):
        if weight == 0:
            assert len(share) == 0


@given(st.integers(0, 300), st.integers(1, 9))
def test_equal_weights_differ_by_one_at_most_and_lower_ranks_have_more(count: int, workers: int) -> None:
    sizes = [len(share) for share in shares(count, [1.0] * workers)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_shares_by_example() -> None:
    assert [len(share) for share in shares(100, [3, 1])] == [75, 25]
    assert [len(share) for share in shares(3, [1, 1, 1, 1])] == [1, 1, 1, 0]
    assert [len(share) for share in shares(5, [1, 0, 2])] == [2, 0, 3]


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0]])
def test_impossible_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="not all zero"):
        shares(10, weights)


@settings(deadline=None)  # the largest examples take their time on a busy machine
@given(st.integers(1, 400), st.integers(1, 120), st.integers(1, 40), weights_of_workers)
def test_an_epoch_is_computed_once_whoever_computes(
    samples: int, global_batch: int, grain: int, weights: list[float]
) -> None:
    batches = Batches(samples, global_batch, grain)
    cursor = Cursor()
    positions: list[int] = []
    for _ in range(batches.per_epoch):
        batch = batches.at(cursor)
        for rank in range(len(weights)):
            for one in batch.share(rank, weights):
                positions += range(one.start, one.stop)
        cursor = batches.after(cursor)
    assert positions == list(range(samples))
    assert cursor == Cursor(1, 0, batches.per_epoch, samples)


def test_a_cursor_moves_through_batches_and_epochs() -> None:
    batches = Batches(samples=203, global_batch=100, grain=20)
    cursor = Cursor()
    seen = []
    for _ in range(4):
        seen.append((cursor.epoch, cursor.batch, cursor.step, cursor.samples, batches.at(cursor).samples))
        cursor = batches.after(cursor)
    assert seen == [(0, 0, 0, 0, 100), (0, 1, 1, 100, 100), (0, 2, 2, 200, 3), (1, 0, 3, 203, 100)]
    assert batches.at(Cursor(batch=2)).grains == (Grain(0, 200, 203),)


def test_a_cursor_survives_json() -> None:
    cursor = Cursor(3, 2, 17, 1640)
    assert Cursor.from_json(cursor.to_json()) == cursor
