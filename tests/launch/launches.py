"""What tests of the launcher share: one zygote for many launches, and scripts to run."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.launch.job import Job, Outcome
from shoal.launch.launcher import Launcher
from shoal.launch.nursery import Nursery

PRELOAD = ("torch", "cloudpickle", "shoal.launch.worker", "shoal.launch.coordinating", "shoal.elastic.coordinator")
PRELUDE = """
import os, sys, signal, time
from shoal.launch.session import current
session = current()
session.next_fit()
rank, size, control = session.world.rank, session.world.size, session.control
"""


class KeptNursery(Nursery):
    """A zygote that outlives a launch."""

    @classmethod
    def ready_made(cls) -> KeptNursery:
        kept = cls(PRELOAD)
        poll = select.poll()
        poll.register(kept.fileno(), select.POLLIN)
        assert poll.poll(120_000), "the zygote was not ready within 120 s"
        kept.events()
        return kept

    def close(self, deadline_s: float = 8.0) -> None:
        pass

    def really_close(self) -> None:
        super().close()


class Launches:
    def __init__(self, directory: Path, nursery: KeptNursery) -> None:
        self.directory = directory
        self._nursery = nursery

    def script(self, body: str, prelude: str = PRELUDE) -> str:
        path = self.directory / "script.py"
        path.write_text(prelude + body)
        return str(path)

    def run(self, body: str, workers: int = 1, prelude: str = PRELUDE, **job: Any) -> Outcome:
        """Run a script with this body on workers of one thread."""
        job.setdefault("threads", 1)
        return Launcher(Job(workers, self.script(body, prelude), **job), self._nursery).run()

    def payload(self, payload: Callable[[], Any], workers: int = 1, **job: Any) -> Outcome:
        return Launcher(Job(workers, payload=payload, threads=1, relay=True, **job), self._nursery).run()


def eventually(condition: Callable[[], Any], deadline_s: float = 120.0) -> Any:
    """Return what `condition` gives as soon as that is true; fail after the deadline."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"did not come true within {deadline_s} s"
        time.sleep(0.005)
    return value


# a script that takes part in views as a training would, and does nothing in them. `at_step` is called in every step;
# `over` says whether the members of a view are through
TAKING_PART = """
from shoal.core.errors import PeerLost
from shoal.elastic.attendance import RunOver
attendance, seat = session.attendance, session.world.seat

def take_part(at_step, over, run_dir=None):
    step, before = 0, 0
    view = attendance.enter(0)
    while True:
        me = view.member(attendance.key)
        control.enter_view(seat, view.number)
        control.enter(seat, step, "meet")
        session.report({"type": "view", "number": view.number, "rank": me.rank, "size": view.size})
        if run_dir is not None and me.rank == 0:
            os.makedirs(run_dir + "/logs", exist_ok=True)
            session.report({"type": "started", "run_dir": run_dir})
        fresh = True
        while not control.broken(view.number) and not attendance.change_wanted(view):
            there = all(control.reading(one.seat).view == view.number for one in view.members)
            if there and over(view, step):
                if me.rank == 0:
                    session.report({"type": "finished", "summary": {"status": "completed"}})
                attendance.finish(0)
                return view, me
            control.enter(seat, step, "forward")
            at_step(view, me, step)
            step += 1
            control.step_done(seat)
            if me.rank == 0 and fresh and before:
                session.report({"type": "resumed", "view": view.number, "step": step})
            fresh = False
            time.sleep(0.005)
        if control.aborted:
            raise PeerLost("the run is over")
        if attendance.going and not control.broken(view.number):
            attendance.depart(view)
            session.report({"type": "departed"})
            return view, me
        before = view.number
        view = attendance.next(view, broken=control.broken(view.number))
"""
