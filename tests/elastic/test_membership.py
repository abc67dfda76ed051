"""The rules by which views follow each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_cases import Room, agent, status, unmoved

from shoal.core.errors import ConfigError
from shoal.elastic.ordering import choose
from shoal.elastic.roster import outdated
from shoal.elastic.status import AgentStatus, Loss, Still
from shoal.elastic.targets import Host, leavers, targets
from shoal.elastic.terms import Terms

pytestmark = pytest.mark.unit


def test_the_first_view_waits_for_all_that_agents_have_started() -> None:
    room = Room()
    room.tell(agent("home", "a", "b", home=True))
    room.say(status("a", agent="home"))
    assert room.number == 0
    assert "has not come to fit()" in room.word("a").awaited[0]
    room.wait(60, "a", "home")  # for as long as the agent says so: the worker may import for minutes
    assert room.number == 0
    room.say(status("b", agent="home"))
    assert (room.number, room.members()) == (1, ("a", "b"))
    assert room.word("b").view == room.membership.view


def test_the_first_view_does_not_wait_for_one_that_has_ended() -> None:
    room = Room()
    room.tell(agent("home", "a", "b", home=True))
    room.say(status("a", agent="home"))
    room.tell(agent("home", "a", home=True, ended={"b": "killed by signal 9"}))
    assert room.members() == ("a",)
    room.say(status("b", agent="home"))  # its last words, overtaken by the news of its end
    assert room.word("b").out == "killed by signal 9"
    assert room.members() == ("a",)


def test_an_agent_that_has_not_spoken_is_given_a_lease() -> None:
    room = Room()
    room.say(status("a", agent="home"))
    assert room.number == 0
    room.wait(2.5, "a")
    assert room.members() == ("a",)


def test_a_joiner_gets_in_when_the_members_have_left_at_the_end_of_a_step() -> None:
    room = Room()
    room.form("a", "b")
    number = room.number
    room.say(status("c"))
    assert (room.word("a").change, room.word("a").broken, room.word("c").view) == (number, 0, None)
    room.become("left", "a")
    assert room.number == number
    assert room.word("c").awaited == ("worker 1 on host-",)
    room.become("left", "b")
    assert (room.number, room.members()) == (number + 1, ("a", "b", "c"))
    assert room.word("a").change == number  # nobody is to leave the new one


def test_a_lost_member_breaks_the_view_at_once() -> None:
    room = Room()
    room.form("a", "b", "c")
    number = room.number
    room.tell(agent("", ended={"a": "killed by signal 9"}))
    assert {room.word(key).broken for key in "bc"} == {number}
    assert room.word("a").out == "killed by signal 9"
    assert room.membership.word_for_agent("other").lost == {"a": Loss("killed by signal 9")}
    room.become("broken", "c", "b")
    assert (room.number, room.members()) == (number + 1, ("b", "c"))  # in the order that they had


def test_a_member_that_found_a_peer_lost_breaks_the_view_for_all() -> None:
    room = Room()
    room.form("a", "b")
    number = room.number
    room.become("broken", "b")
    assert room.word("a").broken == number
    room.become("broken", "a")
    assert (room.number, room.members()) == (number + 1, ("a", "b"))


def test_who_gives_no_sign_of_life_is_put_out_for_good_and_killed_by_its_agent() -> None:
    room = Room()
    room.tell(agent("x", "a", "b"))
    room.say(status("a", agent="x"), status("b", agent="x"))
    room.become("in", "a", "b")
    room.wait(1.9, "a")
    assert room.word("b").out == ""
    room.wait(0.3, "a")
    assert room.word("b").out == "gave no sign of life for 2 s"
    assert room.word("a").broken == room.number
    assert room.membership.word_for_agent("x").evict == {"b": "gave no sign of life for 2 s"}
    room.tell(agent("x", "a", ended={"b": "killed by signal 9"}))
    assert room.membership.word_for_agent("x").evict == {}
    room.say(status("b", "broken", room.number, agent="x"))  # it wakes up
    room.become("broken", "a")
    assert room.members() == ("a",)
    assert room.word("b").out


def test_where_a_silent_worker_was_is_what_its_agent_said_last() -> None:
    """That is no news to anyone before it is lost, and is not forgotten with the coordinator."""
    room = Room()
    room.say(status("a", agent="here"), status("b", agent="there"))
    room.tell(agent("here", "a", home=True))
    room.tell(agent("there", "b", seen=(13, "forward")))
    room.become("in", "a", "b")
    revision = room.membership.revision
    room.tell(agent("there", "b", seen=(14, "reduce")))
    assert room.membership.revision == revision
    where = [(one["step"], one["phase"]) for one in room.membership.report()["workers"]]
    assert where == [(0, "unknown"), (14, "reduce")]
    room.wait(3, "a", "here")
    told = {"b": Loss("gave no sign of life for 2 s", 14, "reduce")}
    assert room.membership.word_for_agent("here").lost == told
    room.restart()
    assert room.membership.word_for_agent("here").lost == told


def stopping_room() -> tuple[Room, AgentStatus]:
    """A run on two hosts that was asked to stop, where the worker of the other one does not move; and what that one's
    agent says."""
    room, there = Room(), unmoved(agent("there", "b", seen=(14, "forward")))
    room.tell(agent("home", "a", home=True))
    room.tell(there)
    room.say(status("a", agent="home"), status("b", agent="there"))
    room.become("in", "a", "b")
    room.wait(0.5, "a", "b", "home", "there")
    return room, there


def test_who_does_not_move_is_told_once_the_run_was_asked_to_stop_and_only_while_that_is_known() -> None:
    room, there = stopping_room()
    word = room.membership.word_for_agent("home")
    assert (word.stopping, word.still) == (False, {})
    before = room.membership.revision
    room.tell(replace(room.agents["home"], stopping=True))
    assert room.membership.revision != before, "all are told at once"
    assert room.membership.word_for_agent("there").stopping
    assert room.membership.word_for_agent("home").still == {"b": Still(4.0, False, 14, "forward")}
    room.wait(1.2, "a", "b", "home")
    assert room.membership.word_for_agent("home").still == {}, "its agent was not heard for more than half a lease"
    room.tell(there)
    assert room.membership.word_for_agent("home").still.keys() == {"b"}
    room.restart()
    room.wait(0.1)
    assert room.membership.word_for_agent("home").still == {}


def test_what_is_said_again_without_a_look_does_not_say_that_a_worker_lives_or_stands_still() -> None:
    seen = agent("there", "b", seen=(14, "forward"), alive=True, leaving=True)
    assert unmoved(seen).repeated() == replace(seen, workers=agent("there", "b", seen=(14, "forward")).workers)


def test_the_launcher_has_a_worker_of_another_host_put_out() -> None:
    room, _ = stopping_room()
    why = "no progress for 4 s in forward after the run was asked to stop"
    room.tell(replace(room.agents["there"], condemned={"a": why}))
    room.tell(replace(room.agents["home"], stopping=True, condemned={"c": why}))
    assert room.membership.broken == 0, "it is not the launcher that says so, or there is none of that name"
    room.tell(replace(room.agents["home"], stopping=True, condemned={"b": why}))
    assert room.membership.broken == 1
    assert room.membership.word_for_agent("there").evict == {"b": why}
    assert room.word("b").out == why
    assert room.membership.word_for_agent("home").lost == {"b": Loss(why, 14, "forward")}
    room.become("broken", "a")
    assert room.members() == ("a",)
    room.tell(room.agents["home"])
    assert room.membership.broken == 1, "said again and again, it has no further effect"


def test_who_has_finished_is_not_put_out_by_the_launcher() -> None:
    room, _ = stopping_room()
    room.become("finished", "b")
    room.tell(replace(room.agents["home"], stopping=True, condemned={"b": "no progress"}))
    assert room.membership.word_for_agent("there").evict == {}


def test_an_agent_vouches_for_a_worker_that_cannot_speak() -> None:
    room = Room()
    room.form("a", "b")
    for _ in range(5):
        room.wait(1.5, "a")
        room.tell(agent("", "b", alive=True))
    assert room.word("b").out == ""
    room.tell(agent("stranger", "b", ended={"a": "I say so"}, alive=True))  # not its to speak for
    assert room.word("a").out == ""


def test_a_silent_agent_costs_its_workers_nothing_but_the_vouching() -> None:
    room = Room()
    room.tell(agent("x", "a"))
    room.say(status("a", agent="x"))
    room.become("in", "a")
    room.wait(60, "a")
    assert room.word("a").out == ""
    assert room.word("a").broken == 0


def test_going_is_a_wish_to_change_and_gone_is_no_loss() -> None:
    room = Room()
    room.form("a", "b")
    number = room.number
    room.become("going", "a")
    assert (room.word("b").change, room.word("b").broken) == (number, 0)
    room.become("gone", "a")
    assert room.number == number
    room.become("left", "b")
    assert room.members() == ("b",)
    assert room.membership.broken == 0
    room.tell(agent("", ended={"a": "exit 0"}))
    assert [str(one) for one in room.membership.notices if one.kind in ("left", "lost")] == ["process 1 on host- left"]


def test_who_leaves_the_run_without_having_entered_the_view_breaks_it() -> None:
    room = Room()
    room.say(status("a"))
    room.become("in", "a")
    room.say(status("b"))
    room.become("left", "a")
    assert room.members() == ("a", "b")
    room.say(status("b", "gone"))  # it was told to go before it had heard that it was let in
    assert room.word("a").broken == room.number


def test_statuses_of_old_views_change_nothing() -> None:
    room = Room()
    room.form("a", "b")
    room.become("left", "a", "b")
    room.become("in", "a", "b")
    number = room.number
    room.membership.on_worker(status("a", "broken", number - 1), room.now_s)
    room.membership.on_worker(status("b", "left", number - 1), room.now_s)
    room.membership.on_worker(status("b", "in", number + 1), room.now_s)  # nor those of views that never were
    assert (room.number, room.membership.broken, room.membership.change) == (number, 0, number - 1)
    assert outdated(status("a", "in", 3), status("a", "finished", 3))
    assert not outdated(status("a", "gone", 3), status("a", "finished", 3))


def test_no_view_is_formed_below_the_quorum_or_above_the_limit() -> None:
    room = Room(Terms(lease_s=2.0, min_workers=2, max_workers=3))
    room.say(status("a"))
    assert room.number == 0
    room.say(status("b"))
    assert room.members() == ("a", "b")
    room.become("in", "a", "b")
    room.say(status("c"), status("d"))
    room.become("left", "a", "b")
    assert room.members() == ("a", "b", "c")
    room.become("in", "a", "b", "c")
    assert room.membership.change < room.number  # d waits at the door and disturbs nobody
    room.tell(agent("", ended={"c": "killed"}))
    room.become("broken", "a", "b")
    assert room.members() == ("a", "b", "d")


def test_the_first_worker_is_on_the_home_host_if_one_is_alive_there() -> None:
    room = Room()
    room.tell(agent("far", "a", "b"))
    room.say(status("a", agent="far"), status("b", agent="far"))
    room.become("in", "a", "b")
    room.tell(agent("home", "c", home=True))
    room.say(status("c", agent="home"))
    room.become("left", "a", "b")
    assert room.members() == ("c", "a", "b")


def test_a_fit_that_one_has_finished_is_over_for_joiners_but_its_members_may_end_it() -> None:
    room = Room(Terms(lease_s=2.0, min_workers=2))
    room.form("a", "b", "c")
    number = room.number
    room.become("finished", "a", "c")
    room.say(status("late"))
    assert room.word("late").over == 1
    assert room.membership.change < number
    room.become("broken", "b")  # a peer that had finished closed its sockets before the last answer was read
    assert (room.number, room.members(), room.membership.fit) == (number + 1, ("b",), 0)
    room.become("in", "b")
    room.say(status("a", "door", number, fit=1), status("late", fit=1))
    assert room.number == number + 1  # not before the last one has finished
    room.become("finished", "b")
    assert room.word("a").awaited  # c may come
    room.say(status("c", "door", number, fit=1))
    room.wait(0.3, "a", "b", "c", "late")
    assert any("earlier fit" in name for name in room.word("a").awaited)
    room.wait(2.5, "a", "b", "c", "late")
    assert (room.number, room.members(), room.membership.fit) == (number + 2, ("a", "c", "late"), 1)


def test_all_members_lost_the_next_view_waits_for_all_replacements() -> None:
    room = Room()
    room.tell(agent("x", "a", "b"))
    room.say(status("a", agent="x"), status("b", agent="x"))
    room.become("in", "a", "b")
    room.tell(agent("x", "c", "d", ended={"a": "killed", "b": "killed"}))
    room.say(status("c", agent="x"))
    assert room.number == 1
    room.say(status("d", agent="x"))
    assert (room.number, room.members()) == (2, ("c", "d"))


def test_a_restarted_coordinator_goes_on_from_its_journal_and_puts_nobody_out() -> None:
    room = Room()
    room.tell(agent("x", "a", "b", "c"))
    room.say(*(status(key, agent="x") for key in "abc"))
    room.become("in", "a", "b", "c")
    room.tell(agent("x", "a", "b", ended={"c": "killed"}))
    view = room.membership.view
    room.now_s += 30
    room.restart()
    room.membership.tick(room.now_s)
    assert room.membership.view == view
    assert {room.word(key).out for key in "ab"} == {""}
    assert room.word("c").out == "killed"
    assert room.word("a").broken == view.number
    room.become("broken", "a", "b")
    assert (room.number, room.members()) == (view.number + 1, ("a", "b"))


def test_a_coordinator_that_has_lost_its_journal_goes_on_from_what_members_know() -> None:
    room = Room()
    room.say(status("a", "in", 7), status("b", "in", 7))
    assert (room.word("a").broken, room.number) == (7, 7)
    room.become("broken", "a", "b")
    assert room.number == 7  # others may still speak up
    room.say(status("c", "broken", 7))
    room.wait(2.5, "a", "b", "c")
    assert (room.number, room.members()) == (8, ("a", "b", "c"))
    room.say(status("d", "in", 99))  # from now on we know
    assert room.number == 8


def test_a_coordinator_that_did_not_run_puts_nobody_out() -> None:
    room = Room()
    room.form("a")
    room.membership.tick(room.now_s)
    room.now_s += 60  # stopped, or the machine slept
    room.membership.tick(room.now_s)
    assert room.word("a").out == ""
    room.wait(3)
    assert room.word("a").out


def test_scaling_down_asks_the_highest_ranks_to_leave_and_up_sets_targets() -> None:
    room = Room()
    room.tell(agent("home", "a", "b", "c", home=True, capacity=3))
    room.say(*(status(key, agent="home") for key in "abc"))
    room.become("in", "a", "b", "c")
    assert room.membership.word_for_agent("home").target is None
    room.membership.on_scale(1, room.now_s)
    assert [room.word(key).leave for key in "abc"] == [False, True, True]
    assert room.word("a").change == room.number
    room.become("gone", "b", "c")
    room.become("left", "a")
    assert room.members() == ("a",)
    room.membership.on_scale(5, room.now_s)
    assert room.membership.word_for_agent("home").target == 5
    assert not room.word("a").leave


def test_a_host_that_leaves_asks_its_workers_to_go() -> None:
    room = Room()
    room.tell(agent("home", "a", home=True))
    room.tell(agent("x", "b"))
    room.say(status("a", agent="home"), status("b", agent="x"))
    room.become("in", "a", "b")
    room.tell(agent("x", "b", leaving=True))
    assert room.membership.word_for_agent("x").target == 0
    assert (room.word("a").leave, room.word("b").leave) == (False, True)
    assert not room.membership.word_for_agent("x").over
    room.tell(agent("home", "a", home=True, leaving=True))
    assert room.membership.word_for_agent("x").over


def test_targets_fill_home_first_and_give_it_the_rest() -> None:
    hosts = [Host("x", False, 2, False), Host("home", True, 2, False), Host("y", False, 4, True)]
    assert targets(hosts, 3, None) == {"home": 2, "x": 1, "y": 0}
    assert targets(hosts, 9, None) == {"home": 7, "x": 2, "y": 0}
    assert targets(hosts, 9, 5) == {"home": 3, "x": 2, "y": 0}
    assert targets(hosts, None, None) == {"home": None, "x": None, "y": 0}
    assert leavers(1, ["a", "b", "door"], {"a": 1, "b": 0}) == {"a", "door"}


def test_joiners_come_after_those_that_stay_and_home_comes_first() -> None:
    assert choose(["b", "a"], ["c"], None, lambda key: False) == ("b", "a", "c")
    assert choose(["b", "a"], ["c", "d"], 3, lambda key: False) == ("b", "a", "c")
    assert choose(["b", "a"], ["c"], None, lambda key: key in "ac") == ("a", "c", "b")
    assert choose([], ["x/10", "x/2"], None, lambda key: False) == ("x/2", "x/10")


def test_the_report_is_plain_values() -> None:
    room = Room()
    room.tell(agent("home", "a", home=True))
    room.say(status("a", agent="home"))
    report = room.membership.report()
    assert report["workers"][0] | {"pid": 0} == {
        "key": "a", "agent": "home", "host": "host-home", "pid": 0, "rank": 0, "state": "door", "view": 0, "fit": 0,
        "step": 0, "phase": "unknown",
    }  # fmt: skip
    assert report["agents"] == [{"agent": "home", "host": "host-home", "home": True, "capacity": 4, "target": None}]


@pytest.mark.parametrize("bad", [{"lease_s": 0}, {"min_workers": 0}, {"min_workers": 3, "max_workers": 2}])
def test_terms_that_cannot_be_met_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="elastic"):
        Terms(**bad)  # type: ignore[arg-type]
