"""A run over hosts that was asked to stop and stands still: who is stuck on another host is ended, the others save."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from host_runs import SCRIPT, HostRun, eventually

from shoal.testing.hosts import Hosts

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

# The worker that has joined does nothing in the middle of a step, without end.
STUCK = """
from shoal.launch.session import current

class Stuck(nn.Module):
    def forward(self, x):
        session = current()
        if self.training and session.rank == 1 and session.control.progress(session.world.seat)[0] == 12:
            (given.gates / "stuck").touch()
            while True: time.sleep(600)
        return x

trainer ="""


def test_who_is_stuck_on_another_host_is_ended_and_the_others_save(
    make_hosts: Callable[..., Hosts], tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    a, b = hosts[0], hosts[1]
    run = HostRun(tmp_path, a)
    run.script.write_text(SCRIPT.replace("\ntrainer =", STUCK).replace("nn.Flatten()", "Stuck(), nn.Flatten()"))
    with run.train("--min-workers", "1", at=(10,)) as home:
        run.reached(10, home)
        with run.join(b, home) as joined:
            run.wait_for_someone_at_the_door()
            run.open(10)
            eventually((run.gates / "stuck").exists)
            asked_s = time.monotonic()
            home.terminate()
            assert home.end() == 143, home.said + joined.said
            assert time.monotonic() - asked_s < 20, "4 s on a calm machine; 30 where a step moves"
            joined.end()
    lost = f"shoal: worker 1 of 2 on {b.name} was lost at step 12 (forward): no progress for"
    assert lost in home.said, home.said
    assert "in forward after the run was asked to stop; the others go on\n" in home.said
    assert lost in joined.said, joined.said
    assert "    while True: time.sleep(600)\n" in joined.said, "its host shows where"
    assert "interrupted at step" in home.said, "it has saved"
    assert run.summary()["status"] == "interrupted"
    assert "a replacement is started" not in joined.said, joined.said
