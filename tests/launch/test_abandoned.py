"""A run that everyone has left without an end is no success."""

from __future__ import annotations

import pytest

from shoal.core.config import ElasticSettings
from shoal.launch.supervisor import Supervisor

pytestmark = pytest.mark.unit
VIEW = {"type": "view", "number": 1, "rank": 0, "size": 1}


def test_who_was_let_go_leaves_no_success() -> None:
    supervisor = Supervisor(1, ElasticSettings())
    (number,) = supervisor.workers
    assert not supervisor.abandoned, "it has not begun"
    supervisor.on_message(number, VIEW, 1.0)
    assert not supervisor.abandoned, "it trains"
    supervisor.on_message(number, {"type": "released"}, 2.0)
    supervisor.on_message(number, {"type": "done"}, 2.0)
    assert supervisor.abandoned


def test_who_finished_did_not_abandon_it() -> None:
    supervisor = Supervisor(1, ElasticSettings())
    (number,) = supervisor.workers
    supervisor.on_message(number, VIEW, 1.0)
    supervisor.on_message(number, {"type": "finished", "summary": {"status": "completed"}}, 2.0)
    supervisor.on_message(number, {"type": "done"}, 2.0)
    assert not supervisor.abandoned
