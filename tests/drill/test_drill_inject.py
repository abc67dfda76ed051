"""Faults come when their step is committed, meet live processes only, and never leave nobody with the state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from drill_cases import joined, lost, step, view

from shoal.drill.hands import Hands, SignalHands
from shoal.drill.inject import Injector
from shoal.drill.scene import Scene, Tail
from shoal.drill.schedule import FaultPlan


class Puppets(Hands):
    """Processes that live until they are killed, and a record of what was done to them."""

    def __init__(self, *pids: int) -> None:
        self.living = set(pids)
        self.sent: list[tuple[int, str]] = []
        self.leader: int | None = 900
        self.links: list[tuple[str, int]] = []

    def alive(self, pid: int) -> bool:
        return pid in self.living

    def send(self, pid: int, number: signal.Signals) -> bool:
        if pid not in self.living and pid != self.leader:
            return False
        self.sent.append((pid, signal.Signals(number).name))
        if number == signal.SIGKILL:
            self.living.discard(pid)
            self.leader = None if pid == self.leader else self.leader
        return True

    def coordinator(self) -> int | None:
        return self.leader

    def host_name(self, host: int) -> str:
        return f"host-{host}"

    def cut(self, host: int) -> bool:
        self.links.append(("cut", host))
        return True

    def mend(self, host: int) -> None:
        self.links.append(("mend", host))


class Drilled:
    """An injector on puppets, with a clock that is set by hand."""

    def __init__(self, *plans: FaultPlan) -> None:
        self.now = 0.0
        self.hands = Puppets(1, 2, 3)
        self.injector = Injector(plans, self.hands, lease_s=2.0, clock=lambda: self.now)
        self.injector.learn([joined(0, rank, rank + 1) for rank in range(3)] + [view(0, 1, [1, 2, 3])])

    def at(self, number: int) -> list[tuple[str, int]]:
        self.injector.learn([step(self.now, number)])
        return [(hit.plan.kind, hit.pid) for hit in self.injector.act()]


pytestmark = pytest.mark.unit


def test_a_fault_comes_once_its_step_is_committed() -> None:
    run = Drilled(FaultPlan("kill", 5, 1), FaultPlan("preempt", 8, 0))
    assert run.at(4) == []
    assert run.at(5) == [("kill", 2)]
    assert run.at(6) == []
    assert run.at(9) == [("preempt", 1)]
    assert run.hands.sent == [(2, "SIGKILL"), (1, "SIGTERM")]
    assert [hit.at_step for hit in run.injector.hits] == [5, 9]
    assert run.injector.missed() == []


def test_faults_of_different_steps_never_come_in_the_same_one() -> None:
    run = Drilled(FaultPlan("kill", 5, 1), FaultPlan("coordinator", 6), FaultPlan("coordinator", 6))
    assert run.at(50) == [("kill", 2)]
    assert run.at(51) == [("coordinator", 900)]  # the other of step 6 finds no coordinator
    run.hands.leader = 901
    assert run.injector.act() == []  # tried already in this step
    assert run.at(52) == [("coordinator", 901)]


def test_the_last_one_who_has_the_state_is_spared() -> None:
    run = Drilled(FaultPlan("kill", 1, 0), FaultPlan("kill", 2, 0), FaultPlan("kill", 3, 2))
    assert run.at(1) == [("kill", 1)]
    assert run.at(2) == [("kill", 2)]  # next to the one who is gone
    assert run.at(3) == []
    assert run.at(4) == []
    run.injector.learn([joined(0, 1, 4), view(0, 3, [3, 4])])
    run.hands.living.add(4)
    assert run.at(5) == [("kill", 3)]  # there is no rank 2: the first


def test_a_fault_that_met_nobody_is_reported_with_the_reason() -> None:
    run = Drilled(FaultPlan("kill", 1), FaultPlan("kill", 2), FaultPlan("kill", 3), FaultPlan("kill", 4))
    for number in range(1, 9):
        run.at(number)
    first, second = run.injector.missed()
    assert (first.plan.at_step, first.why) == (3, "it would have left nobody who has the state")
    assert (second.plan.at_step, second.why) == (4, "the run was over first")


def test_nothing_comes_after_the_end() -> None:
    run = Drilled(FaultPlan("kill", 1))
    run.injector.learn([step(0, 5), {"time": 0, "kind": "run_ended", "status": "completed"}])
    assert run.injector.act() == []
    assert run.injector.missed()[0].why == "the run was over before its step came"


def test_a_frozen_worker_is_let_go_only_if_the_plan_says_so() -> None:
    run = Drilled(FaultPlan("freeze", 1, 0), FaultPlan("freeze", 2, 1, seconds=0.5))
    run.at(1)
    run.now = 1.0
    run.at(2)
    run.now = 1.4
    run.injector.act()
    assert run.hands.sent == [(1, "SIGSTOP"), (2, "SIGSTOP")]
    run.now = 1.5
    run.injector.act()
    assert run.hands.sent[2:] == [(2, "SIGCONT")]
    assert [hit.ended for hit in run.injector.hits] == [None, 1.5]
    run.injector.release()
    assert run.hands.sent[3:] == [(1, "SIGCONT")]


def test_a_frozen_worker_does_not_count_as_one_who_can_go_on() -> None:
    run = Drilled(FaultPlan("freeze", 1, 0), FaultPlan("freeze", 2, 1), FaultPlan("kill", 3, 2))
    assert [run.at(number) for number in (1, 2, 3, 4)] == [[("freeze", 1)], [("freeze", 2)], [], []]


def test_a_slowed_worker_stops_and_goes_with_stops_far_below_the_lease() -> None:
    run = Drilled(FaultPlan("slow", 1, 2, seconds=1.0))
    run.at(1)
    stopped, since = 0.0, 0.0
    for tick in range(1, 150):
        before = len(run.hands.sent)
        run.now = tick * 0.01
        run.injector.act()
        if len(run.hands.sent) > before and run.hands.sent[-1][1] == "SIGCONT":
            stopped = max(stopped, run.now - since)
        elif len(run.hands.sent) > before:
            since = run.now
    assert {pid for pid, _ in run.hands.sent} == {3}
    assert run.hands.sent[-1] == (3, "SIGCONT")
    assert len(run.hands.sent) >= 6
    assert stopped <= 0.5  # a quarter of the lease
    assert run.injector.hits[0].ended == pytest.approx(1.0, abs=0.02)


def test_the_coordinator_is_gone_until_its_successor_is_there() -> None:
    run = Drilled(FaultPlan("coordinator", 1))
    run.at(1)
    run.now = 0.3
    run.injector.act()
    assert run.injector.hits[0].ended is None
    run.now, run.hands.leader = 0.4, 901
    run.injector.act()
    assert run.injector.hits[0].ended == 0.4


def test_a_host_is_cut_and_mended() -> None:
    run = Drilled(FaultPlan("cut", 1, 1, seconds=5.0), FaultPlan("kill", 2, 0))
    run.injector.learn([{**joined(0, 2, 3), "host": "host-1"}, view(0, 2, [1, 3])])
    assert run.at(1) == [("cut", 0)]
    assert run.at(2) == []  # who is cut off does not count as one who can go on
    run.now = 5.0
    run.injector.act()
    assert run.hands.links == [("cut", 1), ("mend", 1)]
    assert run.at(3) == [("kill", 1)]


def test_the_scene_follows_joins_losses_and_views() -> None:
    scene = Scene()
    scene.learn(
        [joined(0, 0, 11), joined(0, 1, 12), {"time": 0, "kind": "member_joined", "role": "evaluator", "pid": 9}]
    )
    assert [one.pid for one in scene.members] == [11, 12]
    scene.learn([view(0, 1, [11, 12]), step(0, 3), lost(0, 0, 11, "killed")])
    assert [(one.pid, one.rank) for one in scene.members] == [(12, 1)]
    scene.learn([joined(0, 0, 13), view(0, 2, [12, 13])])
    assert [(one.pid, one.name) for one in scene.members] == [(12, "worker 0 on home"), (13, "worker 1 on home")]
    assert (scene.step, scene.view, scene.workers) == (3, 2, 2)


def test_a_growing_file_is_read_by_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    tail = Tail(file)
    assert tail.read() == []
    with file.open("w") as out:
        out.write('{"kind": "a"}\n{"ki')
        out.flush()
        assert tail.read() == [{"kind": "a"}]
        out.write('nd": "b"}\n')
        out.flush()
        assert tail.read() == [{"kind": "b"}]
        assert tail.read() == []


@pytest.mark.ranks
def test_signals_go_to_processes_of_the_run_only(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        hands, strangers = SignalHands(lambda: {os.getpid()}, tmp_path), SignalHands(lambda: {child.pid}, tmp_path)
        assert not strangers.send(child.pid, signal.SIGKILL)
        assert not strangers.send(1, signal.SIGCONT)
        assert hands.coordinator() is None
        (tmp_path / "coordinator.json").write_text(json.dumps({"address": "", "pid": child.pid}))
        assert hands.coordinator() == child.pid
        assert hands.send(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead and not reaped: a zombie
        assert not hands.alive(child.pid)
        assert hands.coordinator() is None
    finally:
        child.kill()
        child.wait()
