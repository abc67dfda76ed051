"""Losses on other hosts are learned from the coordinator's words: each once, as the member it was."""

from __future__ import annotations

import pytest

from shoal.core.world import Member, View
from shoal.elastic.status import AgentWord, Loss
from shoal.launch.elsewhere import Elsewhere
from shoal.launch.failure import Casualty, lost

pytestmark = pytest.mark.unit

HERE = Member("worker", 0, "here", 10, "home/0", "home", 0)
THERE = Member("worker", 1, "there", 20, "there-1/0", "there-1", 0)
BOTH = View(3, (HERE, THERE))
SILENT = Loss("gave no sign of life for 2 s", 6, "reduce")


def test_a_member_of_another_host_is_told_once() -> None:
    elsewhere = Elsewhere("home")
    assert elsewhere.hear(AgentWord(view=BOTH)) == []
    (lost,) = elsewhere.hear(AgentWord(view=View(4, (HERE,)), lost={THERE.key: SILENT}))
    assert (str(lost.member), lost.loss, lost.view, lost.size) == ("worker 1 on there", SILENT, 3, 2)
    assert elsewhere.hear(AgentWord(view=View(4, (HERE,)), lost={THERE.key: SILENT})) == []


def test_our_own_and_those_that_never_took_part_are_not_told() -> None:
    elsewhere = Elsewhere("home")
    elsewhere.hear(AgentWord(view=View(1, (HERE,))))
    assert elsewhere.hear(AgentWord(lost={HERE.key: Loss("killed"), THERE.key: Loss("killed")})) == []


def lost_there(loss: Loss) -> Casualty:
    """What is recorded of it at second 100, while this host is at step 7."""
    elsewhere = Elsewhere("home")
    elsewhere.hear(AgentWord(view=BOTH))
    (lost,) = elsewhere.hear(AgentWord(lost={THERE.key: loss}))
    return lost.casualty(step=7, now_s=100.0)


def test_of_one_that_fell_silent_it_is_known_since_when_and_where_it_was_last() -> None:
    casualty = lost_there(SILENT)
    assert (casualty.step, casualty.phase, casualty.view) == (6, "reduce", 3)
    assert (casualty.detected_s, casualty.failed_s) == (2.0, 98.0)
    assert casualty.account.kind == "frozen"
    assert casualty.account.cause == "gave no sign of life for 2 s, last heard of in reduce at step 6"
    assert lost(casualty, 2, "there", "the others go on") == (
        "shoal: worker 1 of 2 on there was lost at step 6 (reduce): "
        "gave no sign of life for 2 s, last heard of in reduce at step 6; the others go on"
    )


def test_of_one_that_did_not_get_on_its_agent_knows_where_it_was() -> None:
    why = "no progress for 4 s in forward after the run was asked to stop"
    casualty = lost_there(Loss(why, 7, "forward"))
    assert (casualty.account.kind, casualty.detected_s, casualty.failed_s) == ("hang", 4.0, 96.0)
    assert lost(casualty, 2, "there", "the others go on") == (
        f"shoal: worker 1 of 2 on there was lost at step 7 (forward): {why}; the others go on"
    )


def test_a_member_of_another_host_that_has_gone_in_good_order_is_told_once() -> None:
    elsewhere = Elsewhere("home")
    words = [
        AgentWord(view=BOTH),
        AgentWord(view=View(4, (HERE,))),
        AgentWord(view=View(4, (HERE,))),
        AgentWord(view=BOTH),  # it was delayed on its way
        AgentWord(view=View(5, (HERE,))),
    ]
    left = []
    for word in words:
        left += elsewhere.left(word)
        assert elsewhere.hear(word) == []
    assert left == [THERE]


def test_who_is_lost_or_at_the_end_of_the_run_has_not_left() -> None:
    for word in (AgentWord(view=View(4, (HERE,)), lost={THERE.key: SILENT}), AgentWord(view=View(4, ()), over=True)):
        elsewhere = Elsewhere("home")
        elsewhere.hear(AgentWord(view=BOTH))
        assert elsewhere.left(word) == []


def test_where_nobody_has_said_how_far_it_was_the_run_tells() -> None:
    casualty = lost_there(Loss(SILENT.cause))
    assert (casualty.step, casualty.phase, casualty.account.cause) == (7, "unknown", SILENT.cause)


def test_its_agent_knows_exactly_where_one_ended_that_was_killed() -> None:
    casualty = lost_there(Loss("killed by signal 9 (SIGKILL)", 6, "backward"))
    assert (casualty.step, casualty.phase, casualty.detected_s) == (6, "backward", 0.0)
    assert casualty.account.message == casualty.account.cause == "killed by signal 9 (SIGKILL)"
