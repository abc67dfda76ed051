"""Coverage judges counts; it is exact about what was seen once, never and too often."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.coverage import CoverageTotals, EpochCoverage, totals

pytestmark = pytest.mark.unit


def test_once_missed_and_repeated() -> None:
    epoch = EpochCoverage(6)
    epoch.commit(np.array([0, 1, 2]))
    epoch.commit(np.array([2, 4, 4]))
    assert epoch.counts.tolist() == [1, 1, 2, 0, 2, 0]
    assert totals(epoch.counts, expected=6) == CoverageTotals(expected=6, once=2, missed=2, repeated=2)


def test_in_the_middle_of_an_epoch_only_what_should_have_been_seen_is_missed() -> None:
    epoch = EpochCoverage(6)
    epoch.commit(np.array([5, 0, 3]))
    assert totals(epoch.counts, expected=3) == CoverageTotals(3, 3, 0, 0)
    assert totals(epoch.counts, expected=4) == CoverageTotals(4, 3, 1, 0)


def test_a_sample_twice_in_one_commit_counts_twice() -> None:
    epoch = EpochCoverage(3)
    epoch.commit(np.array([1, 1]))
    assert totals(epoch.counts, expected=2).repeated == 1


def test_totals_add_up_and_survive_json() -> None:
    total = CoverageTotals(10, 8, 1, 1) + CoverageTotals(5, 5, 0, 0)
    assert total == CoverageTotals(15, 13, 1, 1)
    assert CoverageTotals.from_json(total.to_json()) == total


def test_a_new_epoch_starts_from_nothing() -> None:
    epoch = EpochCoverage(3)
    epoch.commit(np.array([0, 1, 2]))
    epoch.reset()
    assert totals(epoch.counts, expected=0) == CoverageTotals()
