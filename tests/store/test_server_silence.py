"""A server that is frozen, and of which there is no other copy: everybody waits for it, says so, and nobody gives up
before it is decided what becomes of it."""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import threading

import pytest
from kvstore_fleets import LocalFleet, eventually
from served_cases import Trainee

from shoal.core.vitals import Vitals
from shoal.launch.hang import HangJudge
from shoal.store.vigil import Vigil
from shoal.strategies.parameter_server import ParameterServer

pytestmark = pytest.mark.unit
LEASE_S = 0.3


class Understaffed(LocalFleet):
    """Nobody takes the place of who is gone, for as long as `short` says so."""

    short = False

    def start(self, name: str, post: int, listen: str) -> None:
        if not self.short:
            super().start(name, post, listen)


@pytest.mark.parametrize(("replicas", "why"), [(1, "it has no backup"), (2, "its backup is away")])
def test_a_frozen_primary_that_nobody_can_replace_is_named(replicas: int, why: str) -> None:
    with Understaffed(1, replicas, LEASE_S) as fleet:
        primary = fleet.primary(0)
        fleet.short = True
        for other in [name for name in fleet.servers if name != primary]:
            fleet.kill(other)
            eventually(lambda: any("without a backup" in words for words in fleet.notices), "the primary on its own")
        fleet.freeze(primary)
        said = eventually(lambda: [words for words in fleet.notices if "was silent" in words], "the keeper's word")
        assert len(said) == 1
        assert f"server 0: {primary} (process " in said[0]
        assert why in said[0]
        assert "kill -9" in said[0]
        fleet.wake(primary)
        eventually(lambda: f"server 0: {primary} answers again" in fleet.notices, "its answer")
        assert fleet.primary(0) == primary


def test_a_process_is_silent_while_it_neither_answers_nor_computes() -> None:
    vigil = Vigil(0.0, lambda pid: Vitals("S", 5))
    assert vigil.silent_s(0, math.inf, 0.5) == 0.0, "nobody knows the process yet"
    assert vigil.silent_s(7, math.inf, 0.5) == 0.0, "a new one lives"
    silent = [vigil.silent_s(7, math.inf, tenths / 10) for tenths in range(6, 46)]
    assert silent[-1] == pytest.approx(4.0, abs=0.2)
    assert vigil.silent_s(7, 0.3, 4.5) == 0.3, "it has answered"
    assert not vigil.stopped


@pytest.mark.parametrize("slow", [Vitals("R", 6), Vitals("S", 6), Vitals("D", 5)])
def test_a_process_that_is_only_slow_is_not_silent(slow: Vitals) -> None:
    """It computes, or waits for the disk, on which its memory may be."""
    seen = [Vitals("S", 5), Vitals("S", 5), slow]
    vigil = Vigil(0.0, lambda pid: seen.pop(0))
    assert [vigil.silent_s(7, math.inf, now_s) for now_s in (0.5, 1.0, 1.5)] == [0.0, 0.5, 0.0]


def test_a_keeper_that_stood_still_itself_takes_nobody_for_silent() -> None:
    """As when the user has stopped the whole program for an hour (Ctrl-Z) and lets it go on."""
    vigil = Vigil(0.0, lambda pid: Vitals("T", 5))
    assert vigil.silent_s(7, math.inf, 0.5) == 0.5
    assert vigil.silent_s(7, math.inf, 3600.0) == 1.5
    assert vigil.stopped == "stopped by a signal (SIGSTOP)"


class StartsFrozen(LocalFleet):
    """Its first process is stopped before it listens."""

    frozen: subprocess.Popen[bytes] | None = None

    def start(self, name: str, post: int, listen: str) -> None:
        if name != "0a.1":
            super().start(name, post, listen)
            return
        self.frozen = subprocess.Popen(["sleep", "600"])
        self.frozen.send_signal(signal.SIGSTOP)

    def pid(self, name: str) -> int:
        return self.frozen.pid if self.frozen is not None and name == "0a.1" else super().pid(name)

    def kill(self, name: str, why: str = "") -> None:
        assert self.frozen is not None
        assert name == "0a.1"
        self.frozen.kill()
        self.frozen.wait()
        self.keeper.on_ended(name, "was killed by signal 9")

    def close(self) -> None:
        super().close()
        if self.frozen is not None:
            self.frozen.kill()
            self.frozen.wait()


def test_a_process_that_freezes_before_it_is_ready_is_replaced() -> None:
    with contextlib.closing(StartsFrozen(1, hang_s=0.5)) as fleet:
        fleet.wait_ready()
        assert fleet.primary(0) == "0a.2"
        said = "server 0: 0a.1 is ended: stopped by a signal (SIGSTOP), no sign of life for "
        assert [words for words in fleet.notices if words.startswith(said)]
        assert not fleet.losses, "it held nothing"


def test_who_waits_for_a_frozen_server_does_not_hang_and_does_not_give_up_first() -> None:
    with LocalFleet(1) as fleet, Trainee(ParameterServer(), fleet) as one:
        one.do(0)
        assert one.replica.kv.deadline_s > one.replica.runtime.hang_s + 60, "it is started again within that time"
        judge, control = HangJudge(hang_s=1.0, hang_steps=1.0, start_s=1.0), one.replica.runtime.control
        fleet.freeze(fleet.primary(0))
        step = threading.Thread(target=one.do, args=(1,))
        step.start()
        eventually(lambda: control.reading(0).waiting, "the worker to say that it waits")
        control.step_done(0)
        judged = [judge.observe(now_s, {"worker": control.reading(0)}) for now_s in (0.0, 100.0, 200.0)]
        fleet.wake(fleet.primary(0))
        step.join()
        assert judged == [[], [], []]
        assert not control.reading(0).waiting
