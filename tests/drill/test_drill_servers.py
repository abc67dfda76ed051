"""Faults of servers: they meet the process that holds one, never its last copy, and only where there are servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from drill_cases import step
from test_drill_inject import Puppets

from shoal.cli.main import main
from shoal.core.config import resolve
from shoal.core.errors import ConfigError
from shoal.drill.fleet import Fleet, check_fleet, check_server_plans, recorded_fleet, stated_fleet
from shoal.drill.inject import Injector
from shoal.drill.kinds import parse_kinds
from shoal.drill.schedule import FaultPlan, random_schedule

pytestmark = pytest.mark.unit


def served(at: int, pid: int, kind: str = "member_joined") -> dict[str, Any]:
    return {"time": 0, "kind": kind, "role": "server", "rank": at, "host": "home", "pid": pid, "cause": "lost"}


def stands(at: int, term: int, whole: bool) -> dict[str, Any]:
    return {"time": 0, "kind": "server", "rank": at, "term": term, "whole": whole}


class Served:
    """An injector on two servers with two processes each: 10 and 11, 20 and 21."""

    def __init__(self, *plans: FaultPlan) -> None:
        self.now = 0.0
        self.hands = Puppets(10, 11, 12, 20, 21)
        self.injector = Injector(plans, self.hands, lease_s=2.0, clock=lambda: self.now)
        self.injector.learn([served(at, pid) for at, pid in ((0, 10), (1, 20), (1, 21), (0, 11))])
        self.injector.learn([stands(0, 1, True), stands(1, 1, True)])

    def at(self, number: int) -> list[tuple[int, str]]:
        self.injector.learn([step(self.now, number)])
        return [(hit.pid, hit.member) for hit in self.injector.act()]


def test_the_process_that_holds_a_server_is_hit_and_its_copy_is_spared_until_it_has_one_itself() -> None:
    run = Served(FaultPlan("kill-server", 1), FaultPlan("kill-server", 2), FaultPlan("freeze-server", 3))
    assert run.at(1) == [(10, "server 0")]
    assert run.at(2) == [(20, "server 1")]  # the other, as the first is not whole
    assert run.at(3) == []
    run.injector.learn([served(0, 10, "member_lost"), served(1, 20, "member_lost")])
    assert run.at(4) == [], "what it knows of them is from before they were lost"
    run.injector.learn([stands(0, 2, False), served(0, 12)])
    assert run.at(5) == []
    run.injector.learn([stands(0, 2, True)])
    assert run.at(6) == [(11, "server 0")]  # the copy that has taken over
    assert run.hands.sent == [(10, "SIGKILL"), (20, "SIGKILL"), (11, "SIGSTOP")]
    assert run.injector.missed() == []


def test_a_slowed_server_goes_on_and_is_not_hit_again_meanwhile() -> None:
    run = Served(FaultPlan("slow-server", 1, 1, 0.5), FaultPlan("kill-server", 2, 1))
    assert run.at(1) == [(20, "server 1")]
    assert run.at(2) == [(10, "server 0")]
    run.now = 1.0
    run.injector.act()
    assert run.hands.sent[-1] == (20, "SIGCONT")
    assert run.injector.hits[0].ended == 1.0


def test_a_run_without_servers_is_told_so() -> None:
    run = Injector([FaultPlan("kill-server", 1)], Puppets(), lease_s=2.0, clock=lambda: 0.0)
    run.learn([step(0, 1)])
    assert run.act() == []
    assert run.missed()[0].why == "there was no server"


def test_servers_are_drawn_like_workers() -> None:
    plans = random_schedule(1, 40, parse_kinds("kill,kill-server"), 1000, workers=2, servers=3)
    assert {plan.target for plan in plans if plan.kind == "kill-server"} == {0, 1, 2}
    assert {plan.target for plan in plans if plan.kind == "kill"} == {0, 1}


@pytest.mark.parametrize(
    ("settings", "servers"),
    [
        ({"strategy": "parameter-server"}, 1),
        ({"strategy": "async", "servers": 3}, 3),
        ({"strategy": "incremental", "servers": 3}, 0),
        ({"strategy": "hybrid"}, 0),
        ({"strategy": "hybrid", "hybrid.outer": "parameter-server", "servers": 2}, 2),
    ],
)
def test_how_many_servers_the_command_line_asks_for(settings: dict[str, Any], servers: int) -> None:
    config = resolve(("the script", {"global_batch": 1}), ("the command line", settings))
    fleet = stated_fleet(config, settings)
    assert fleet is not None
    assert fleet.servers == servers
    assert stated_fleet(config, {}) is None  # the script may name another


def test_what_these_servers_cannot_meet_is_refused() -> None:
    none = recorded_fleet({}, {"strategy": "allreduce"})
    with pytest.raises(ConfigError, match=r"'kill-server'.*strategy allreduce has no servers.*leave 'kill-server' out"):
        check_fleet(["kill", "kill-server"], none)
    check_fleet(["kill"], none)
    one = recorded_fleet({"server": {"replicas": 1}}, {"strategy": "async", "servers": 2})
    with pytest.raises(ConfigError, match="kill-server of server 2 at step 5, but --servers 2 are numbered 0 to 1"):
        check_server_plans([FaultPlan("kill-server", 5, 2)], one)
    with pytest.raises(ConfigError, match=r"for ever.*Give --replicas 2"):
        check_server_plans([FaultPlan("freeze-server", 5)], one)
    check_server_plans([FaultPlan("freeze-server", 5, seconds=1.0), FaultPlan("kill-server", 9)], one)
    check_server_plans([FaultPlan("freeze-server", 5)], Fleet("async", 2, 2))


def test_it_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "digits.py").write_text("")
    monkeypatch.chdir(tmp_path)
    words = ["--random", "1", "--kinds", "freeze-server", "--strategy", "allreduce", "--run-dir", "d"]
    assert main(["drill", "digits.py", *words]) == 2
    assert "strategy allreduce has no servers" in capsys.readouterr().err
    assert not Path("d").exists()
