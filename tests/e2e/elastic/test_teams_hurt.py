"""Teams of workers with servers between them, of which a member, a leader or a server dies: the result is the same."""

from __future__ import annotations

import pytest
from self_hurt import Trials, assert_same, script
from test_servers_hurt import NORM, assert_whole, with_servers_hurt

pytestmark = pytest.mark.ranks

TEAMS = ("--strategy", "hybrid", "--set", "hybrid.team=2", "--servers", "2", "--workers", "3")
BSP = (*TEAMS, "--set", "hybrid.outer=parameter-server")
ASYNC = (*TEAMS, "--set", "hybrid.outer=async")
LEADER, MEMBER = 0, 1  # of the team that has two
OTHER = 2  # of the team that has one
AFTER_COMMIT = f"""
from shoal.strategies.parameter_server import ParameterServer

finish = ParameterServer._finish

def die_first(strategy, replica, record, *rest):
    rank() == {LEADER} and record["step"] == 14 and die()
    return finish(strategy, replica, record, *rest)

ParameterServer._finish = die_first


class Net"""


def test_a_member_or_a_leader_of_a_synchronous_run_dies(trials: Trials) -> None:
    calm = trials.calm(script(norm=NORM), *BSP)
    assert calm.summary()["servers"] == 2
    hurt = {
        name: script(norm=NORM, forward=f"rank() == {victim} and step() == 14 and die()")
        for name, victim in (("leader", LEADER), ("member", MEMBER))
    }
    hurt["untold"] = script(norm=NORM).replace("class Net", AFTER_COMMIT)  # the team does not know what was committed
    for name, text in hurt.items():
        done, run = trials.train(text, *BSP, run=name)
        assert done.status == 0, done.err
        assert run.summary()["faults"], f"nobody died: {name}"
        assert_same(run, calm)


@pytest.mark.parametrize("victim", [LEADER, MEMBER])
def test_a_member_or_a_leader_of_an_asynchronous_run_dies(trials: Trials, victim: int) -> None:
    # the other team leaves some tasks to this one
    waits = f"rank() == {OTHER} and step() >= 14 and until((MARKS / 'die').exists)"
    hurt = script(forward=f"rank() == {victim} and step() >= 14 and die(); {waits}")
    done, run = trials.train(hurt, *ASYNC)
    assert done.status == 0, done.err
    assert run.summary()["faults"]
    assert_whole(run)


@pytest.mark.parametrize("words", [BSP, ASYNC], ids=["bsp", "async"])
def test_a_server_without_a_copy_dies_and_the_teams_go_back(trials: Trials, words: tuple[str, ...]) -> None:
    settings = "checkpoint={'every': '5 steps'},"
    hurt = script(settings=settings, forward=f"rank() == {MEMBER} and step() >= 14 and kill_server()")
    done, run = trials.train(with_servers_hurt(hurt), *words)
    assert done.status == 0, done.err
    assert [event for event in run.events("warning") if "back from step" in event["message"]]
    assert_whole(run)
