"""Losses on other hosts are learned from the coordinator's words: each once, as the member it was."""

from __future__ import annotations

import pytest

from shoal.core.world import Member, View
from shoal.elastic.status import AgentWord
from shoal.launch.elsewhere import Elsewhere

pytestmark = pytest.mark.unit

HERE = Member("worker", 0, "here", 10, "home/0", "home", 0)
THERE = Member("worker", 1, "there", 20, "there-1/0", "there-1", 0)
BOTH = View(3, (HERE, THERE))
SILENT = "gave no sign of life for 2 s"


def test_a_member_of_another_host_is_told_once() -> None:
    elsewhere = Elsewhere("home")
    assert elsewhere.hear(AgentWord(view=BOTH)) == []
    (lost,) = elsewhere.hear(AgentWord(view=View(4, (HERE,)), lost={THERE.key: SILENT}))
    assert (str(lost.member), lost.cause, lost.view, lost.size) == ("worker 1 on there", SILENT, 3, 2)
    assert elsewhere.hear(AgentWord(view=View(4, (HERE,)), lost={THERE.key: SILENT})) == []


def test_our_own_and_those_that_never_took_part_are_not_told() -> None:
    elsewhere = Elsewhere("home")
    elsewhere.hear(AgentWord(view=View(1, (HERE,))))
    assert elsewhere.hear(AgentWord(lost={HERE.key: "killed", THERE.key: "killed"})) == []


def test_when_it_failed_is_known_of_one_that_fell_silent() -> None:
    elsewhere = Elsewhere("home")
    elsewhere.hear(AgentWord(view=BOTH))
    (lost,) = elsewhere.hear(AgentWord(lost={THERE.key: SILENT}))
    casualty = lost.casualty(step=7, now_s=100.0)
    assert (casualty.step, casualty.detected_s, casualty.failed_s, casualty.view) == (7, 2.0, 98.0, 3)
    assert casualty.account.kind == "frozen"
    assert "cut off" in casualty.account.message
