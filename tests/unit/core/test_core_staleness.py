"""How old updates were: added up as they come, told only where there is something to tell."""

from __future__ import annotations

import json

import pytest

from shoal.core.staleness import Staleness
from shoal.train.ledger import Ledger

pytestmark = pytest.mark.unit


def test_updates_add_up() -> None:
    one = Staleness().after((0, 2, 0), 1).after((5, 0), 0)
    assert one.summary() == {"mean": 1.4, "max": 5, "lead": 1, "histogram": {"0": 3, "2": 1, "5": 1}}


def test_where_workers_go_in_step_there_is_nothing_to_tell() -> None:
    assert Staleness().after((), 0).summary() is None


def test_it_goes_with_the_ledger_of_a_run() -> None:
    ledger = Ledger(staleness=Staleness({0: 7, 12: 1}, 2))
    told = json.loads(json.dumps(ledger.to_json()))
    assert Ledger.from_json(told).staleness == ledger.staleness
    del told["staleness"]
    assert Ledger.from_json(told).staleness == Staleness(), "a checkpoint that does not know of it"
