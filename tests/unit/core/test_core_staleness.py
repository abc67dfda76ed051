"""How old updates were: added up as they come, told only where there is something to tell."""

from __future__ import annotations

import json

import pytest

from shoal.core.staleness import Aging, Staleness
from shoal.train.ledger import Ledger

pytestmark = pytest.mark.unit


def test_updates_add_up() -> None:
    one = Staleness().after((0, 2, 0), 1).after((5, 0), 0)
    assert one.summary() == {"mean": 1.4, "max": 5, "lead": 1, "histogram": {"0": 3, "2": 1, "5": 1}}


@pytest.mark.parametrize(
    ("aging", "age", "at_risk"),
    [
        (Aging(False, 0.9, 2), 1.0, True),  # 0.78 where it was 0.97
        (Aging(True, 0.9, 2), 1.0, True),
        (Aging(False, 0.5, 2), 1.0, False),
        (Aging(False, 0.5, 4), 3.0, True),
        (Aging(False, 0.0, 3), 2.0, False),
        (Aging(True, 0.0, 9), 8.0, False),
        (Aging(False, 0.9, 1), 0.0, False),
    ],
)
def test_it_is_said_where_accuracy_is_at_risk(aging: Aging, age: float, at_risk: bool) -> None:
    assert aging.expected == age
    words = aging.risk(age)
    assert bool(words) == at_risk
    assert ("momentum=" in words) == (at_risk and aging.momentum > 0)
    assert ("strategy async" in words) == (at_risk and not aging.damping)


def test_the_summary_says_what_it_cost() -> None:
    old = Staleness({0: 1, 1: 2, 3: 1}, 2)
    told = old.summary(Aging(True, 0.0, 2))
    assert told is not None
    assert told["rate"] == round((1 + 2 / 2 + 1 / 4) / 4, 3)
    assert "warning" not in told
    told = old.summary(Aging(False, 0.9, 2))
    assert told is not None
    assert told["rate"] == 1.0
    assert "1.2 commits old" in told["warning"]


def test_where_workers_go_in_step_there_is_nothing_to_tell() -> None:
    assert Staleness().after((), 0).summary() is None


def test_it_goes_with_the_ledger_of_a_run() -> None:
    ledger = Ledger(staleness=Staleness({0: 7, 12: 1}, 2))
    told = json.loads(json.dumps(ledger.to_json()))
    assert Ledger.from_json(told).staleness == ledger.staleness
    del told["staleness"]
    assert Ledger.from_json(told).staleness == Staleness(), "a checkpoint that does not know of it"
