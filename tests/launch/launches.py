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

PRELOAD = ("torch", "cloudpickle", "shoal.launch.worker")
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
        assert poll.poll(60_000), "the zygote was not ready within 60 s"
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


def eventually(condition: Callable[[], Any], deadline_s: float = 20.0) -> Any:
    """Return what `condition` gives as soon as that is true; fail after the deadline."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"did not come true within {deadline_s} s"
        time.sleep(0.005)
    return value
