"""What is done about a run that was asked to stop and stands still: who is ended, and when all are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from shoal.comm.control import Reading
from shoal.core.world import Member
from shoal.elastic.status import Still
from shoal.launch.halt import GiveUp, Halt, Relieve
from shoal.launch.hang import Pace
from shoal.launch.stillness import STILL_S, Sight

pytestmark = pytest.mark.unit

HERE = Member("worker", 0, "here", 10, "home/0", "home")
THERE = Member("worker", 1, "there", 20, "there-1/0", "there-1")
FAR = Member("worker", 2, "far", 30, "far-1/0", "far-1")
WAITS = Still(4.0, True, 7, "reduce")
HANGS = Still(4.2, False, 7, "forward")


def still_here(waiting: bool, seconds: float = 4.0, pace: Pace = Pace()) -> Halt:  # noqa: B008 - it is frozen
    """At the launcher, whose worker has not moved for so long."""
    halt = Halt(STILL_S)
    sight = Sight(Reading(7, "reduce" if waiting else "forward", 1, 70, waiting, 7), 5.0)
    for now_s in (0.0, seconds):
        halt.look(now_s, {HERE.key: sight}, [HERE.key], pace)
    return halt


def enough(out: Collection[Member]) -> bool:
    return True


def test_who_is_stuck_on_another_host_is_ended_so_that_the_others_save() -> None:
    still = {THERE.key: HANGS, FAR.key: WAITS}
    assert still_here(waiting=True).judge([HERE, THERE, FAR], still, enough) == Relieve(((THERE, HANGS),))


@pytest.mark.parametrize("still", [{}, {THERE.key: HANGS}, {FAR.key: WAITS}])
def test_as_long_as_one_moves_or_is_not_known_not_to_nobody_is_ended(still: Mapping[str, Still]) -> None:
    assert still_here(waiting=True).judge([HERE, THERE, FAR], still, enough) is None


def test_of_its_own_workers_an_agent_knows_better_than_what_was_told() -> None:
    halt = Halt(STILL_S)
    assert halt.judge([THERE], {THERE.key: HANGS}, enough) is not None
    assert halt.judge([HERE, THERE], {THERE.key: HANGS}, enough) is None


def test_who_is_at_the_end_of_its_script_is_waited_for() -> None:
    halt = still_here(waiting=False)
    halt.look(5.0, {}, [HERE.key], Pace())
    assert halt.judge([HERE], {}, enough) is None


def test_somebody_is_relieved_once_then_all_are_ended() -> None:
    halt, still = still_here(waiting=True), {THERE.key: HANGS, FAR.key: WAITS}
    assert isinstance(halt.judge([HERE, THERE, FAR], still, enough), Relieve)
    assert halt.judge([HERE, THERE, FAR], still, enough) is None, "it is not known here yet that it is out"
    again = halt.judge([HERE, FAR], {FAR.key: Still(3.5, False, 8, "backward")}, enough)
    assert again == GiveUp("worker 2 on far: no progress at step 8 (backward)")


def test_where_too_few_would_be_left_all_are_ended_and_the_stuck_named() -> None:
    still = {THERE.key: HANGS, FAR.key: HANGS}
    ended = still_here(waiting=False).judge([HERE, THERE, FAR], still, lambda out: len(out) < 3)
    assert ended == GiveUp("; ".join(f"worker {one.rank} on {one.host}: no progress at step 7 (forward)"
                                     for one in (HERE, THERE, FAR)))  # fmt: skip
    beside = Member("worker", 3, "there", 21, "there-1/1", "there-1")
    ended = Halt(STILL_S).judge([THERE, beside], {THERE.key: HANGS, beside.key: HANGS}, lambda out: False)
    assert ended == GiveUp("worker 1, worker 3 on there: no progress at step 7 (forward)")


def test_where_all_wait_for_one_another_nobody_is_named() -> None:
    assert still_here(waiting=True).judge([HERE], {}, enough) == GiveUp("all workers wait for one another")


@pytest.mark.parametrize(
    ("pace", "seconds", "given_up"),
    [(Pace(0.2, 0.4), 5.0, False), (Pace(0.2, 0.4), 5.1, True), (Pace(0.8, 1.0), 7.9, False),
     (Pace(0.2, 9.0), 8.9, False), (Pace(0.2, 9.0), 9.1, True), (Pace(), 29.0, False)],
)  # fmt: skip
def test_between_hosts_all_may_wait_for_what_is_on_its_way(pace: Pace, seconds: float, given_up: bool) -> None:
    """For as long as steps have taken, or ten times as long as they usually take; before the first, for as long as a
    run that was asked to stop is waited for at all."""
    halt, still = still_here(waiting=True, seconds=seconds, pace=pace), {THERE.key: Still(29.0, True, 7, "reduce")}
    assert (halt.judge([HERE, THERE], still, enough) == GiveUp("all workers wait for one another")) == given_up
