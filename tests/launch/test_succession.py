"""Who takes the place of a lost worker, and when a run ends for want of workers: decisions, without processes."""

from __future__ import annotations

import math
import signal
from typing import Any

import pytest

from shoal.core.config import ElasticSettings
from shoal.launch.decisions import Abort, RequestStop, Send, Start, Tell
from shoal.launch.failure import account_of_end, account_of_freeze, account_of_hang
from shoal.launch.succession import REPEATS, Succession
from shoal.launch.supervisor import LEAVE_S, SETTLE_S, WAIT_S, Stage, Supervisor

pytestmark = pytest.mark.unit

FROZEN = account_of_freeze("T", "no sign of life for 2 s")


def training(workers: int, **terms: Any) -> Supervisor:
    """A supervisor whose workers take part in view 1."""
    supervisor = Supervisor(workers, ElasticSettings(**terms))
    supervisor.on_message(0, {"type": "started", "run_dir": "/run"}, 0.0)
    for number in range(workers):
        enter(supervisor, number, 1, number, workers)
    return supervisor


def enter(supervisor: Supervisor, number: int, view: int, rank: int, size: int) -> None:
    supervisor.on_message(number, {"type": "view", "number": view, "rank": rank, "size": size}, 0.0)


def killed(supervisor: Supervisor, number: int, now_s: float, code: int = -9, step: int = 0) -> None:
    supervisor.locate(number, step, "forward")
    supervisor.on_exit(number, code, now_s, now_s)


def failed(kind: str, status: int = 1) -> dict[str, Any]:
    return {"type": "failed", "kind": kind, "message": "x", "status": status, "cause": "x"}


def test_a_killed_worker_is_replaced_at_once() -> None:
    supervisor = training(3)
    killed(supervisor, 1, 5.0)
    assert supervisor.decide(5.0) == [Start((3,)), Tell(1, 2, (1, 10))]
    assert supervisor.decide(5.0) == []
    assert (supervisor.stage, supervisor.able, supervisor.failures) == (Stage.RUNNING, (0, 2, 3), {})
    enter(supervisor, 3, 2, 2, 3)
    killed(supervisor, 3, 6.0)
    assert supervisor.decide(6.0) == [Start((4,)), Tell(3, 2, (2, 10))]


def test_with_the_budget_used_up_the_rest_goes_on() -> None:
    supervisor = training(3, max_restarts=1)
    killed(supervisor, 1, 5.0)
    killed(supervisor, 2, 5.0)
    assert supervisor.decide(5.0) == [Start((3,)), Tell(1, 1, (1, 1)), Tell(2, 1, None)]
    assert not supervisor.too_few


def test_too_few_end_the_run() -> None:
    supervisor = training(2, max_restarts=0, min_workers=2)
    killed(supervisor, 1, 5.0)
    assert supervisor.decide(5.0) == [Tell(1, 1, None), Abort()]
    assert supervisor.decide(5.0 + SETTLE_S) == [Send((), signal.SIGTERM)], "the first one may complete what it writes"
    supervisor.on_exit(0, 1, 6.0, 6.0)
    assert supervisor.over(6.0)
    assert (supervisor.status, supervisor.too_few) == (1, True)


def test_workers_elsewhere_are_enough() -> None:
    supervisor = training(1, max_restarts=0)
    supervisor.elsewhere = 1
    killed(supervisor, 0, 5.0)
    assert supervisor.decide(5.0) == [Tell(0, 1, None)]


def test_preemption_has_a_budget_of_its_own() -> None:
    supervisor = training(2, max_restarts=0, max_preemptions=1)
    supervisor.on_message(1, {"type": "departed"}, 5.0)
    assert supervisor.decide(5.0) == [Start((2,))], "its place is taken while it leaves"
    supervisor.on_message(1, {"type": "done"}, 5.1)
    supervisor.on_exit(1, 0, 5.2, 5.2)
    assert supervisor.decide(5.2) == [Tell(1, 1, (1, 1))]
    assert not supervisor.finishing
    killed(supervisor, 2, 6.0, code=-signal.SIGTERM)
    assert supervisor.decide(6.0) == [Tell(2, 1, None)]
    assert supervisor.failures == {}


def test_without_anyone_left_all_preempted_is_a_failure() -> None:
    supervisor = training(1, max_preemptions=0)
    killed(supervisor, 0, 5.0, code=-signal.SIGTERM)
    assert supervisor.decide(5.0)[-1] == Abort()
    assert supervisor.over(5.0)
    assert supervisor.status == 1


@pytest.mark.parametrize(
    ("kind", "on_error", "survived"),
    [
        ("exception", "stop", False),
        ("exception", "continue", True),
        ("exit", "continue", True),
        ("user", "continue", False),
        ("disk", "continue", False),
        ("peer", "continue", False),
    ],
)
def test_what_an_exception_leads_to(kind: str, on_error: str, survived: bool) -> None:
    supervisor = training(2, on_error=on_error)
    supervisor.on_message(1, failed(kind), 5.0)
    decisions = supervisor.decide(5.0)
    assert (Start((2,)) in decisions) is survived
    assert (Abort() in decisions) is not survived
    assert (supervisor.failures == {}) is survived


def test_what_a_worker_does_to_itself_before_the_run_has_begun_ends_it() -> None:
    for code, survived in ((-11, False), (3, False), (-9, True), (-15, True)):
        supervisor = Supervisor(2, ElasticSettings())
        killed(supervisor, 1, 1.0, code=code)
        assert (Start((2,)) in supervisor.decide(1.0)) is survived, code


def test_the_same_step_breaks_only_so_many() -> None:
    supervisor = training(2)
    for number in range(REPEATS):
        assert supervisor.failures == {}
        victim = supervisor.able[-1]
        killed(supervisor, victim, float(number), code=-11, step=7)
        decisions = supervisor.decide(float(number))
    assert decisions == [Abort()]
    assert supervisor.status == 1


def test_another_step_or_a_kill_from_outside_does_not_count() -> None:
    succession = Succession(ElasticSettings())
    for step in (7, 8, 7, 8, 7, 8):
        assert succession.survives(account_of_end(-11), step, begun=True)
    for _ in range(2 * REPEATS):
        assert succession.survives(account_of_end(-9), 9, begun=True)
        assert succession.survives(FROZEN, 9, begun=True)
    hang = account_of_hang(61.0, "forward", "elastic.hang_s")
    assert [succession.survives(hang, 9, begun=True) for _ in range(REPEATS)] == [True] * (REPEATS - 1) + [False]


def test_an_evicted_worker_is_replaced_before_it_is_killed_and_told_of_afterwards() -> None:
    supervisor = training(2)
    assert supervisor.on_evicted(1, FROZEN, 3.0, 5.0)
    assert supervisor.decide(5.0) == [Start((2,))]
    supervisor.on_exit(1, -9, 5.5, 5.5)
    assert supervisor.decide(5.5) == [Tell(1, 1, (1, 10))]
    assert supervisor.workers[1].account == FROZEN
    assert (supervisor.workers[1].failed_s, supervisor.workers[1].detected_s) == (3.0, 2.0)


def test_who_was_put_out_and_has_noticed_is_replaced_too() -> None:
    supervisor = training(2)
    supervisor.on_message(1, {"type": "released"}, 5.0)
    supervisor.on_message(1, {"type": "done"}, 5.0)
    assert not supervisor.finishing
    assert supervisor.on_evicted(1, FROZEN, 3.0, 5.0)
    assert supervisor.decide(5.0) == [Start((2,))]


def test_who_was_put_out_and_has_ended_before_we_hear_of_it_is_replaced_too() -> None:
    supervisor = training(2)
    supervisor.on_message(1, {"type": "released", "put_out": "gave no sign of life for 2 s"}, 5.0)
    supervisor.on_message(1, {"type": "done"}, 5.0)
    supervisor.on_exit(1, 0, 5.0, 5.0)
    assert supervisor.decide(5.0) == [Start((2,)), Tell(1, 1, (1, 10))]
    account = supervisor.workers[1].account
    assert account is not None
    assert (account.kind, account.cause) == ("frozen", "gave no sign of life for 2 s")
    assert (supervisor.workers[1].failed_s, supervisor.workers[1].detected_s) == (3.0, 2.0)
    assert not supervisor.on_evicted(1, FROZEN, 3.0, 5.1), "the coordinator's word comes after"
    assert supervisor.decide(5.1) == []
    assert not supervisor.finishing
    assert supervisor.failures == {}


def test_who_was_let_go_is_not_replaced() -> None:
    supervisor = training(2)  # it had come for a fit that was over, or was asked to leave at the door
    supervisor.on_message(1, {"type": "released"}, 5.0)
    supervisor.on_message(1, {"type": "done"}, 5.0)
    supervisor.on_exit(1, 0, 5.0, 5.0)
    assert supervisor.decide(5.0) == []
    assert not supervisor.finishing


def test_who_notices_that_it_was_put_out_when_the_run_is_ended_is_no_cause_of_that() -> None:
    supervisor = training(2)
    supervisor.on_message(0, failed("user", status=2), 5.0)
    assert supervisor.decide(5.0) == [Abort()]
    supervisor.on_message(1, {"type": "released", "put_out": "gave no sign of life for 2 s"}, 5.1)
    supervisor.on_message(1, {"type": "done"}, 5.1)
    assert list(supervisor.failures) == [0]
    assert supervisor.status == 2


def test_who_has_ended_is_not_evicted() -> None:
    supervisor = training(2)
    killed(supervisor, 1, 5.0)
    assert not supervisor.on_evicted(1, FROZEN, 3.0, 5.0)
    supervisor.on_message(0, {"type": "done"}, 5.0)
    assert not supervisor.on_evicted(0, FROZEN, 3.0, 5.0)


def test_nobody_is_replaced_at_the_end() -> None:
    supervisor = training(3)
    supervisor.on_message(0, {"type": "finished", "summary": {"status": "completed"}}, 5.0)
    supervisor.on_message(0, {"type": "done"}, 5.0)
    killed(supervisor, 1, 5.1)
    killed(supervisor, 2, 5.1, code=-11)
    assert supervisor.decide(5.1) == [Tell(1, 0, None), Tell(2, 0, None)]
    supervisor.on_exit(0, 0, 5.2, 5.2)
    assert supervisor.over(5.2)
    assert supervisor.status == 0


def test_nobody_is_replaced_while_the_run_stops() -> None:
    supervisor = training(2)
    supervisor.on_interrupt(signal.SIGINT)
    assert supervisor.decide(5.0) == [RequestStop()]
    killed(supervisor, 1, 5.1)
    assert supervisor.decide(5.1) == [Tell(1, 1, None)]
    assert supervisor.stage == Stage.STOPPING


def test_who_still_waits_to_take_part_is_dismissed_at_the_end() -> None:
    supervisor = training(1)
    supervisor.on_target(2)
    supervisor.on_message(0, {"type": "done"}, 5.0)
    supervisor.on_exit(0, 0, 5.0, 5.0)
    assert supervisor.decide(5.0) == []
    assert supervisor.deadline_s == 5.0 + WAIT_S
    assert supervisor.decide(5.0 + WAIT_S) == [Send((1,), signal.SIGTERM)]
    assert supervisor.deadline_s == 5.0 + WAIT_S + LEAVE_S
    supervisor.on_exit(1, -15, 7.0, 7.0)
    assert supervisor.decide(7.0) == []
    assert supervisor.over(7.0)
    assert (supervisor.status, supervisor.failures, supervisor.deadline_s) == (0, {}, math.inf)


def test_more_or_fewer_are_wanted() -> None:
    supervisor = training(2)
    assert supervisor.on_target(2) == []
    assert supervisor.on_target(4) == [Start((2, 3))]
    assert supervisor.on_target(3) == []
    supervisor.on_message(3, {"type": "departed", "notice": True}, 5.0)
    assert supervisor.decide(5.0) == []
    supervisor.on_exit(3, 0, 5.1, 5.1)
    assert supervisor.decide(5.1) == [Tell(3, 2, None)]
    assert supervisor.workers[3].spare
    killed(supervisor, 2, 6.0)
    assert supervisor.decide(6.0)[0] == Start((4,))


def test_who_was_asked_to_go_by_the_coordinator_is_not_replaced() -> None:
    supervisor = training(2)  # it may hear of it before the agent does
    supervisor.on_message(1, {"type": "departed", "notice": False}, 5.0)
    assert supervisor.decide(5.0) == []


def test_who_was_asked_to_go_while_the_last_other_one_left_is_replaced() -> None:
    supervisor = training(2)
    assert supervisor.on_target(1) == []
    supervisor.on_message(0, {"type": "departed", "notice": True}, 5.0)  # preempted: the other one is enough
    assert supervisor.decide(5.0) == []
    supervisor.on_message(1, {"type": "departed", "notice": False}, 5.1)  # which the coordinator has asked to go
    assert supervisor.decide(5.1) == [Start((2,))]
    for number in (0, 1):
        supervisor.on_exit(number, 0, 5.2, 5.2)
    assert supervisor.decide(5.2)
    assert not supervisor.too_few


def test_the_first_worker_is_that_of_the_newest_view() -> None:
    supervisor = training(3)
    assert supervisor.first == 0
    killed(supervisor, 0, 5.0)
    supervisor.decide(5.0)
    enter(supervisor, 1, 2, 0, 2)
    enter(supervisor, 2, 2, 1, 2)
    assert supervisor.first == 1
