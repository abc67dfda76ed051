"""Whole grains for workers of different speed: nobody could have been done earlier."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.grains import shares as cut_shares
from shoal.elastic.allotment import allot, at_least_one, fixed_part, spread, step_s

pytestmark = pytest.mark.unit
_STEADY = settings(max_examples=100, deadline=None, derandomize=True, database=None)
_COST = st.floats(0.01, 10.0)


@_STEADY
@given(st.integers(1, 9), st.lists(_COST, min_size=1, max_size=3), st.floats(0.0, 5.0))
def test_no_other_way_is_quicker(grains: int, costs: list[float], fixed: float) -> None:
    found = allot(grains, costs, fixed)
    assert sum(found) == grains
    ways = (way for way in itertools.product(range(grains + 1), repeat=len(costs)) if sum(way) == grains)
    assert step_s(found, costs, fixed) <= min(step_s(way, costs, fixed) for way in ways) * (1 + 1e-12)


@_STEADY
@given(st.integers(1, 5000), st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40), st.floats(0.0, 100.0))
def test_all_grains_are_given_out(grains: int, costs: list[float], fixed: float) -> None:
    found = allot(grains, costs, fixed)
    assert sum(found) == grains
    assert min(found) >= 0
    # as weights they come to the same shares again
    assert tuple(len(part) for part in cut_shares(grains, [float(n) for n in found])) == found


def test_equal_workers_get_the_shares_that_equal_weights_give() -> None:
    for grains, workers in itertools.product(range(1, 30), range(1, 6)):
        expected = tuple(len(part) for part in cut_shares(grains, [1.0] * workers))
        assert allot(grains, [0.37] * workers) == expected


def test_a_grain_for_everyone() -> None:
    assert at_least_one((5, 0, 0)) == (3, 1, 1)
    assert at_least_one((1, 1, 0)) == (1, 1, 0)
    assert at_least_one((2, 0, 0)) == (1, 1, 0)


def times(shares: list[int], costs: list[float], fixed: float) -> list[tuple[int, float]]:
    return [(share, cost * (fixed + share)) for share, cost in zip(shares, costs, strict=True)]


def test_what_does_not_change_with_the_grains() -> None:
    before, after = times([32, 32], [0.01, 0.04], 8.0), times([48, 16], [0.01, 0.04], 8.0)
    found = fixed_part(before, after)
    assert found is not None
    assert found[0] == pytest.approx(8.0, abs=1e-6)
    busier = times([48, 16], [0.02, 0.08], 8.0)
    assert fixed_part(before, busier) == pytest.approx(found), "all have become slower meanwhile"
    doubtful = fixed_part(before, after, doubt=0.05)
    assert doubtful is not None
    assert doubtful[0] < 8.0
    assert fixed_part(before, times([48, 16], [0.01, 0.04], 1000.0)) == (32.0, found[1]), "no more than can matter"


def test_what_does_not_tell() -> None:
    assert fixed_part(times([32, 32], [1.0, 1.0], 8.0), times([33, 31], [1.0, 1.0], 8.0)) is None, "too little changed"
    assert fixed_part(times([32, 32], [1.0, 9.0], 8.0), times([64, 0], [1.0, 9.0], 8.0)) is None, (
        "who has none is still"
    )
    quicker = fixed_part(times([32, 32], [1.0, 4.0], 0.0), times([48, 16], [1.0, 1.0], 0.0))
    assert quicker is not None
    assert quicker[0] == 0.0


def test_a_change_of_level_is_no_noise() -> None:
    assert spread([1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0]) == 0.0
    assert spread([1.0, 1.2, 1.0, 1.2, 1.0, 1.2]) > 0.1
