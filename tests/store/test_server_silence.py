"""A server that is frozen, and of which there is no other copy: everybody waits for it, says so, and nobody gives up
before it is decided what becomes of it."""

from __future__ import annotations

import threading

import pytest
from kvstore_fleets import LocalFleet, eventually
from served_cases import Trainee

from shoal.launch.hang import HangJudge
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
