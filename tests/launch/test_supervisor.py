"""The launcher's decisions, without processes: who is ended when, and which status follows."""

from __future__ import annotations

import math
import signal
from typing import Any

import pytest

from shoal.core.config import ElasticSettings
from shoal.launch.supervisor import (
    CAUSE_S,
    FLUSH_S,
    GIVE_UP_S,
    LEAVE_S,
    SETTLE_S,
    STOP_S,
    TERMINATE_S,
    Abort,
    RequestStop,
    Send,
    Start,
    Supervisor,
)

pytestmark = pytest.mark.unit


def failed(kind: str, message: str = "x", status: int = 1) -> dict[str, Any]:
    return {"type": "failed", "kind": kind, "message": message, "status": status, "cause": message}


def started(supervisor: Supervisor) -> Supervisor:
    supervisor.on_message(0, {"type": "started", "run_dir": "/run"}, 0.0)
    return supervisor


def test_a_run_without_trouble_needs_no_decision() -> None:
    supervisor = started(Supervisor(2))
    assert supervisor.decide(0.0) == []
    assert supervisor.deadline_s == math.inf
    for rank in (0, 1):
        supervisor.on_message(rank, {"type": "done"}, 1.0)
        supervisor.on_exit(rank, 0, 1.0, 1.0)
    assert supervisor.over(1.0)
    assert (supervisor.status, supervisor.failures) == (0, {})


def test_a_failure_is_settled_then_terminated_then_killed() -> None:
    supervisor = Supervisor(3)
    supervisor.on_message(1, failed("exception"), 10.0)
    assert supervisor.decide(10.0) == [Abort()]
    assert supervisor.decide(10.0) == []
    assert supervisor.deadline_s == pytest.approx(10.0 + SETTLE_S)
    supervisor.on_exit(1, 1, 10.1, 10.1)
    assert supervisor.decide(10.0 + SETTLE_S) == [Send((0, 2), signal.SIGTERM)]
    supervisor.on_exit(0, -15, 10.4, 10.4)
    assert supervisor.decide(10.0 + SETTLE_S + TERMINATE_S) == [Abort(), Send((2,), signal.SIGKILL)]
    assert not supervisor.over(11.0)
    assert supervisor.over(10.0 + SETTLE_S + TERMINATE_S + GIVE_UP_S)
    assert list(supervisor.failures) == [1], "whom we ended ourselves has not failed"
    assert supervisor.status == 1


def test_a_failure_that_follows_another_waits_longer_for_its_cause() -> None:
    supervisor = Supervisor(2)
    supervisor.on_message(0, failed("peer"), 10.0)
    assert supervisor.decide(10.0) == [Abort()]
    assert supervisor.deadline_s == 10.0 + CAUSE_S
    supervisor.on_exit(1, -9, 10.2, 10.25)
    assert supervisor.decide(10.25) == []
    assert supervisor.deadline_s == pytest.approx(10.25 + SETTLE_S)
    assert supervisor.failures[1].kind == "signal"
    assert supervisor.workers[1].detected_s == pytest.approx(0.05)


def test_the_first_worker_gets_time_to_complete_a_checkpoint() -> None:
    supervisor = started(Supervisor(3))
    supervisor.on_message(2, failed("exception"), 10.0)
    supervisor.decide(10.0)
    assert supervisor.decide(10.0 + SETTLE_S) == [Send((1, 2), signal.SIGTERM)]
    assert supervisor.deadline_s == pytest.approx(10.0 + SETTLE_S + FLUSH_S)
    assert CAUSE_S + FLUSH_S < 5, "an exception ends the run within 5 s"


def test_the_first_interrupt_asks_the_second_kills() -> None:
    supervisor = started(Supervisor(2))
    supervisor.on_interrupt(signal.SIGINT)
    assert supervisor.decide(1.0) == [RequestStop()]
    assert supervisor.deadline_s == 1.0 + STOP_S
    supervisor.on_interrupt(signal.SIGINT)
    assert supervisor.decide(2.0) == [Abort(), Send((0, 1), signal.SIGKILL)]
    for rank in (0, 1):
        supervisor.on_exit(rank, -9, 2.0, 2.0)
    assert (supervisor.status, supervisor.failures) == (130, {})


def test_without_anything_to_save_the_first_interrupt_kills() -> None:
    supervisor = Supervisor(1)
    supervisor.on_interrupt(signal.SIGTERM)
    assert supervisor.decide(1.0) == [Abort(), Send((0,), signal.SIGKILL)]
    supervisor.on_exit(0, -9, 1.0, 1.0)
    assert supervisor.status == 143


def test_who_does_not_stop_in_time_is_killed() -> None:
    supervisor = started(Supervisor(1))
    supervisor.on_interrupt(signal.SIGINT)
    supervisor.decide(1.0)
    assert supervisor.decide(0.9 + STOP_S) == []
    assert supervisor.decide(1.0 + STOP_S) == [Abort(), Send((0,), signal.SIGKILL)]
    assert supervisor.overdue
    assert supervisor.status == 130


def test_who_will_never_stop_is_killed_at_once() -> None:
    supervisor = started(Supervisor(2))
    supervisor.on_interrupt(signal.SIGINT)
    supervisor.decide(1.0)
    supervisor.on_stuck("all workers wait for one another")
    assert supervisor.decide(4.1) == [Abort(), Send((0, 1), signal.SIGKILL)]
    assert supervisor.overdue
    assert supervisor.status == 130


def test_a_step_is_ended_without_those_who_are_stuck_if_enough_are_left() -> None:
    supervisor = Supervisor(3, ElasticSettings(min_workers=2))
    assert supervisor.goes_on_without([1])
    assert not supervisor.goes_on_without([1, 2])
    assert not Supervisor(3).goes_on_without([1]), "nothing is survived"
    supervisor.elsewhere = 2
    assert supervisor.goes_on_without([1, 2], elsewhere=1)
    assert not supervisor.goes_on_without([1, 2], elsewhere=2)
    assert not supervisor.goes_on_without([0, 1, 2]), "the run directory is here"


@pytest.mark.parametrize("stopping", [False, True])
def test_nobody_is_replaced_in_a_run_that_was_asked_to_stop_at_another_host(stopping: bool) -> None:
    supervisor = Supervisor(2, ElasticSettings())
    supervisor.elsewhere, supervisor.stopping_elsewhere = 1, stopping
    supervisor.on_message(1, {"type": "view", "number": 1, "rank": 2, "size": 3}, 1.0)
    supervisor.on_exit(1, -signal.SIGKILL, 2.0, 2.0)
    started = [one for one in supervisor.decide(2.0) if isinstance(one, Start)]
    assert started == ([] if stopping else [Start((2,))])
    assert supervisor.on_target(3) == ([] if stopping else [Start((3,))])


@pytest.mark.parametrize(("summary", "status"), [("interrupted", 130), ("completed", 0), (None, 130)])
def test_the_status_after_an_interrupt_follows_the_summary(summary: str | None, status: int) -> None:
    supervisor = started(Supervisor(1))
    supervisor.on_interrupt(signal.SIGINT)
    supervisor.decide(1.0)
    if summary is not None:
        supervisor.on_message(0, {"type": "finished", "summary": {"status": summary}}, 2.0)
    supervisor.on_message(0, {"type": "done"}, 2.0)
    supervisor.on_exit(0, 0, 2.0, 2.0)
    assert supervisor.status == status


def test_an_error_while_stopping_is_an_error() -> None:
    supervisor = started(Supervisor(1))
    supervisor.on_interrupt(signal.SIGINT)
    supervisor.decide(1.0)
    supervisor.on_message(0, failed("exception"), 2.0)
    assert supervisor.decide(2.0) == [Abort()]
    supervisor.on_exit(0, 1, 2.0, 2.0)
    assert supervisor.status == 1


def test_a_process_that_lingers_after_its_script_is_killed_alone_and_once() -> None:
    supervisor = started(Supervisor(2))
    supervisor.on_message(1, {"type": "done"}, 5.0)
    assert supervisor.deadline_s == 5.0 + LEAVE_S
    assert supervisor.decide(5.0 + LEAVE_S) == [Send((1,), signal.SIGKILL)]
    assert supervisor.decide(6.0 + LEAVE_S) == []
    supervisor.on_exit(1, -9, 16.0, 16.0)
    assert supervisor.failures == {}
    assert supervisor.deadline_s == math.inf


@pytest.mark.parametrize("code", [0, 3, -11])
def test_to_end_without_a_word_is_a_failure(code: int) -> None:
    supervisor = Supervisor(1)
    supervisor.on_exit(0, code, 1.0, 1.0)
    assert supervisor.failures[0].kind == ("signal" if code < 0 else "ended")
    assert supervisor.status == 1


@pytest.mark.parametrize(
    ("accounts", "status"),
    [
        ([("user", 2)], 2),
        ([("disk", 2), ("peer", 1)], 2),
        ([("exit", 7), ("exit", 7)], 7),
        ([("user", 2), ("exception", 1)], 1),
        ([("peer", 1), ("user", 2)], 2),
        ([("peer", 1)], 1),
    ],
)
def test_statuses_of_failures(accounts: list[tuple[str, int]], status: int) -> None:
    supervisor = Supervisor(len(accounts))
    for rank, (kind, code) in enumerate(accounts):
        supervisor.on_message(rank, failed(kind, status=code), 1.0)
        supervisor.on_exit(rank, code, 1.0, 1.0)
    assert supervisor.status == status
