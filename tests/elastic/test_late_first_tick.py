"""A coordinator that was started again and then did not run for a while: nobody is to blame for that."""

from __future__ import annotations

import json

import pytest

from shoal.elastic.membership import Membership
from shoal.elastic.status import WorkerStatus
from shoal.elastic.terms import Terms

pytestmark = pytest.mark.unit


def test_a_late_first_tick_puts_nobody_out() -> None:
    terms = Terms(lease_s=2.0)
    first = Membership(terms)
    first.on_worker(WorkerStatus("w0", "", "here", 7, 0, "", fit=0, view=0, state="door"), 1.0)
    first.tick(3.0)
    assert first.word_for_worker("w0").view is not None
    again = Membership.from_json(json.loads(json.dumps(first.to_json())), terms, 100.0)
    again.tick(106.0)
    assert again.word_for_worker("w0").out == ""
    assert not again.broken
