"""How the launcher looks after the coordinator of its run: starts it, starts it again, says where it is."""

from __future__ import annotations

import contextlib
import json
import selectors
import time
from collections.abc import Callable
from dataclasses import replace

from shoal.core.errors import ShoalError
from shoal.elastic.journal import JOURNAL_NAME
from shoal.elastic.keys import RunKeys, write_key_file
from shoal.elastic.messages import Ask, Request, Scale, SetJournal, StoreDelete, StoreSet
from shoal.elastic.process import CoordinatorSpec
from shoal.elastic.terms import Terms
from shoal.launch.agent import Agent
from shoal.launch.coordinating import RESTARTS, CoordinatorChild
from shoal.launch.failure import account_of_end
from shoal.launch.job import Job
from shoal.launch.nursery import Nursery
from shoal.launch.offer import STORE_KEY, offer_of
from shoal.launch.rundir import RunDir, replace_file
from shoal.launch.scaling import key_file
from shoal.launch.zygote_messages import Exited, Forked

PLACE_NAME = "coordinator.json"  # in the run directory: where the coordinator listens, and its process
_ANSWER_S = 0.3
_AGAIN_S = 1.0
_GOODBYE_S = 5.0


class Coordination:
    """The coordinator of a run, from its first start to the end. `on_ready` is called once; `on_lost` when it cannot be
    had (any more), with the reason; `on_again` with what there is to tell when it was started again."""

    def __init__(self, job: Job, nursery: Nursery, agent: Agent, selector: selectors.BaseSelector) -> None:
        elastic = job.elastic
        terms = Terms(elastic.lease_s, elastic.min_workers, job.most_workers)
        self.keys = RunKeys.make()
        spec = CoordinatorSpec(self.keys, terms)
        if job.listen is not None:
            spec = replace(spec, host=job.listen.address, port=job.listen.port)
        self._standing: dict[str, StoreSet] = {}  # what must lie in the store
        if job.listen is not None:
            self._standing[STORE_KEY] = StoreSet(STORE_KEY, offer_of(job).to_bytes())
        self._child = CoordinatorChild(nursery, spec)
        self._agent, self._selector = agent, selector
        self._run_dir: RunDir | None = None
        self._untold: list[Request] = []  # what the coordinator has to be told yet, and when
        self._untold_due_s: float | None = None
        self.on_ready: Callable[[], None] = lambda: None
        self.on_lost: Callable[[str], None] = lambda why: None
        self.on_again: Callable[[str], None] = lambda words: None

    def start(self) -> None:
        """Start it; `on_ready` follows."""
        self._child.start()
        channel, log = self._child.channel, self._child.log
        assert channel is not None
        assert log is not None
        self._selector.register(channel, selectors.EVENT_READ, self._on_channel)
        self._selector.register(log.fd, selectors.EVENT_READ, self._on_output)

    def _on_channel(self) -> None:
        first = not self._child.address
        problem = self._child.hear()
        if problem is not None:
            self.on_lost(f"the coordinator cannot begin: {problem}")
        elif self._child.address:
            if first:
                self._agent.join(self._child.address, self.keys.client())
            for entry in self._standing.values():
                if entry not in self._untold:
                    self._tell(entry)  # again, if it was started again: it may have had no journal yet
            if first:
                self.on_ready()

    def _on_output(self) -> None:
        log = self._child.log
        if log is not None and not log.pump():
            self._selector.unregister(log.fd)

    def on_child(self, event: Forked | Exited) -> None:
        """Something happened to a child of the nursery."""
        if event.key != self._child.child:
            return
        if isinstance(event, Forked):
            self._child.pid = event.pid
            self._write_place()
            return
        self._on_channel()
        for fd in (self._child.channel, self._child.log and self._child.log.fd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(fd)  # type: ignore[arg-type]
        cause = account_of_end(event.code).cause
        if self._child.on_exit():
            self.start()
            self.on_again(f"the coordinator was {cause} and is started again ({self._child.starts - 1} of {RESTARTS})")
        else:
            self.on_lost(f"the coordinator was {cause}, for the {self._child.starts}th time")

    def scale(self, workers: int) -> None:
        """The run should have so many workers from now on, as if a user had asked for them."""
        self._untold = [request for request in self._untold if not isinstance(request, Scale)]
        self._tell(Scale(workers))

    # -- what members read in the store

    def publish(self, entry: StoreSet) -> None:
        """Have this lie in the store from now on."""
        self._standing[entry.key] = entry
        self._tell(entry)

    def withdraw(self, entry: StoreDelete) -> None:
        """What was published is not true any more."""
        if self._standing.pop(entry.key, None) is not None:
            self._tell(entry)

    # -- the run directory

    def enter(self, run_dir: RunDir) -> None:
        """The run directory is known: put the key and the address there, and have the journal kept there."""
        if self._run_dir is not None:
            return
        self._run_dir = run_dir
        self._child.open_log(run_dir.logs)
        self._child.keep_journal(str(run_dir.path / JOURNAL_NAME))
        self._tell(SetJournal(str(run_dir.path)))
        with contextlib.suppress(OSError):  # a full disk: the run's own writing says so
            write_key_file(key_file(run_dir.path), self.keys.client(), self._child.address)
        self._write_place()
        self.remind()

    @property
    def place(self) -> str:
        """Where it listens: host:port."""
        return self._child.address.removeprefix("tcp://")

    def _tell(self, request: Request) -> None:
        self._untold.append(request)
        self._untold_due_s = time.monotonic()

    def _write_place(self) -> None:
        if self._run_dir is not None and self._child.pid:
            with contextlib.suppress(OSError):
                text = json.dumps({"address": self._child.address, "pid": self._child.pid})
                replace_file(self._run_dir.path / PLACE_NAME, text)

    @property
    def deadline_s(self) -> float | None:
        """When `remind` must be called at the latest."""
        return self._untold_due_s

    def remind(self) -> None:
        """Tell it what it has to know (where its journal is; what others join), until it has heard that."""
        link = self._agent.link
        if self._untold_due_s is None or link is None or time.monotonic() < self._untold_due_s:
            return
        self._untold_due_s = None
        while self._untold:
            try:
                link.request(self._untold[0], _ANSWER_S)
            except ShoalError:
                self._untold_due_s = time.monotonic() + _AGAIN_S
                return
            self._untold.pop(0)

    def end(self) -> None:
        """The run is over: nobody can join it any more, and who has done so is told."""
        self._agent.leaving = True
        if STORE_KEY in self._standing and self._agent.link is not None:
            self._agent.say()
            self._agent.link.flush(_GOODBYE_S)
            with contextlib.suppress(ShoalError):  # one more turn: what it has to tell the others is on its way then
                self._agent.link.request(Ask(), _GOODBYE_S)
        if self._run_dir is not None:
            for path in (key_file(self._run_dir.path), self._run_dir.path / PLACE_NAME):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        self._child.end()
        self._child.close()
