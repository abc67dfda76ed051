"""How the launcher looks after parameter servers: a fleet of them for each fit() whose strategy needs one.

A worker asks for them when its fit() begins; where they are, all workers read in the coordinator's store. A server that
is lost is started again, within the same budget as workers, though counted apart: a run cannot go on without one.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.core.events import MemberJoined, ServerStands
from shoal.core.world import Member
from shoal.launch.coordination import Coordination
from shoal.launch.failure import Casualty
from shoal.launch.interfaces import LOOPBACK
from shoal.launch.job import Job
from shoal.launch.nursery import Nursery
from shoal.launch.rundir import RunDir
from shoal.launch.telling import Teller
from shoal.launch.zygote_messages import Exited, Forked

if TYPE_CHECKING:
    from shoal.launch.fleet import LaunchedFleet, LostServer
    from shoal.launch.serving import ServerChild
    from shoal.store.description import FleetDescription

_LOOK_S = 1.0
_LOOK_CLOSELY_S = 0.02  # while somebody waits for a server
WANTED = "servers"  # the message by which a worker asks for them


def wish(
    fit: int, servers: int, replicas: int, encrypt: str, plugins: Sequence[str] = (), hang_s: float | None = None
) -> dict[str, Any]:
    """What a worker says to have servers for a fit(). `plugins` are the user's modules that they import first. One that
    shows no sign of life for `hang_s` is replaced; None: after as long as the command says."""
    terms: dict[str, Any] = {"servers": servers, "replicas": replicas, "encrypt": encrypt}
    if hang_s is not None:
        terms["hang_s"] = hang_s
    return {"type": WANTED, "fit": fit, "terms": terms, "plugins": list(plugins)}


class Servers:
    """All fleets of a script; the last one ends when the next fit() is under way. For the launcher's thread, whose
    `selector` it uses. `on_lost` is called with the reason when servers cannot be had (any more)."""

    def __init__(
        self,
        job: Job,
        nursery: Nursery,
        selector: selectors.BaseSelector,
        coordination: Coordination,
        teller: Teller,
        step: Callable[[], int],
    ) -> None:
        self._job, self._nursery, self._selector = job, nursery, selector
        self._coordination, self._teller, self._step = coordination, teller, step
        self.on_lost: Callable[[str], None] = lambda why: None
        self._host = socket.gethostname()
        self._fleets: dict[int, LaunchedFleet] = {}
        self._run_dirs: dict[int, RunDir] = {}
        self._missed: list[tuple[LaunchedFleet, LostServer]] = []  # until what they held is held again
        self._restarts = 0
        self._look_s = math.inf
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        selector.register(self._bell, selectors.EVENT_READ, self._run_errands)

    # -- from other threads

    def _later(self, errand: Callable[[], None]) -> None:
        self._errands.put(errand)
        os.eventfd_write(self._bell, 1)

    def _run_errands(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        with contextlib.suppress(queue.Empty):
            while True:
                self._errands.get_nowait()()

    # -- what workers say

    def ask(self, message: Mapping[str, Any]) -> None:
        """A worker wants servers for its fit(). The first that asks gets them for all."""
        fit = int(message["fit"])
        if fit in self._fleets or any(later > fit for later in self._fleets):
            return
        fleet = self._make(fit, message["terms"], tuple(map(str, message["plugins"])))
        fleet.on_change = partial(self._on_change, fleet)
        fleet.on_ready = self._on_ready
        fleet.on_stir = self._look_now
        fleet.on_ended = partial(self._on_ended, fleet)
        fleet.on_problem = lambda why: self.on_lost(f"a server cannot begin: {why}")
        self._fleets[fit] = fleet
        fleet.begin()
        self._look_s = time.monotonic() + _LOOK_CLOSELY_S
        if fit in self._run_dirs:
            fleet.open_logs(self._run_dirs[fit].logs)

    def _make(self, fit: int, terms: Mapping[str, Any], plugins: tuple[str, ...]) -> LaunchedFleet:
        # most runs have no servers, and need nothing of this
        from shoal.launch.fleet import LaunchedFleet, Means
        from shoal.launch.serving import search_path_of
        from shoal.store.keeper import FleetTerms

        job, keys = self._job, self._coordination.keys
        means = Means(self._nursery, self._selector, keys, search_path_of(job), self._later, plugins)
        host = job.listen.address if job.listen is not None else LOOPBACK
        return LaunchedFleet(fit, FleetTerms(**{"host": host, "hang_s": job.elastic.hang_s, **terms}), means)

    def enter(self, fit: int, run_dir: RunDir) -> None:
        """A fit() has started: what belongs to earlier ones is not needed any more, and its directory is known."""
        self._run_dirs[fit] = run_dir
        for number, fleet in self._fleets.items():
            if number < fit:
                self._end(fleet)
            elif number == fit:
                fleet.open_logs(run_dir.logs)

    # -- what happens to servers

    def _on_change(self, fleet: LaunchedFleet, description: FleetDescription) -> None:
        from shoal.elastic.fleet import told

        if not fleet.over:
            self._coordination.publish(told(fleet.fit, description))

    def _on_ready(self, child: ServerChild) -> None:
        self._teller.note(MemberJoined("server", child.post, self._host, child.pid))

    def _look_now(self) -> None:
        self._look_s = min(self._look_s, time.monotonic())

    def _on_ended(self, fleet: LaunchedFleet, lost: LostServer) -> None:
        self._restarts += 1
        allowed = self._job.elastic.max_restarts
        again = self._restarts <= allowed
        now_s = time.monotonic()
        casualty = Casualty(
            lost.post, lost.account, self._step(), "serving", max(0.0, now_s - lost.ended_s), failed_s=lost.ended_s
        )
        self._teller.lost_server(
            casualty,
            Member("server", lost.post, self._host, lost.pid),
            f"{lost.follows} ({self._restarts} of {allowed})" if again else "",
        )
        if not again:
            used_up = f"elastic.max_restarts={allowed} is used up"
            self.on_lost(f"server {lost.post} cannot be replaced, since {used_up}: the run ends")
            return
        self._missed.append((fleet, lost))
        self._look_s = now_s + _LOOK_CLOSELY_S

    def on_child(self, event: Forked | Exited) -> bool:
        """Something happened to a child of the nursery; returns whether that is a server."""
        return any(fleet.on_child(event) for fleet in self._fleets.values())

    # -- looking after them

    @property
    def deadline_s(self) -> float:
        """When `watch` must be called at the latest."""
        return self._look_s

    def watch(self) -> None:
        """Look at the servers where that is due."""
        now_s = time.monotonic()
        if now_s < self._look_s:
            return
        for fleet in self._fleets.values():
            if not fleet.over:
                fleet.look_whether_ready()
                for news in fleet.standing():
                    self._teller.note(ServerStands(*news))
        for fleet, lost in [one for one in self._missed if one[0].over or one[0].serves_again(one[1])]:
            self._missed.remove((fleet, lost))
            if not fleet.over:
                self._teller.server_again(lost.post, now_s)
        alive = [fleet for fleet in self._fleets.values() if not fleet.over]
        awaited = self._missed or not all(fleet.ready and fleet.whole for fleet in alive)
        self._look_s = now_s + (_LOOK_CLOSELY_S if awaited else _LOOK_S) if alive else math.inf

    # -- the end

    def _end(self, fleet: LaunchedFleet) -> None:
        from shoal.elastic.fleet import withdrawn

        if not fleet.over:
            self._coordination.withdraw(withdrawn(fleet.fit))
            fleet.end()

    def close(self) -> None:
        """End those that are left, and give everything back. May be called twice."""
        for fleet in self._fleets.values():
            fleet.end()
        self._look_s = math.inf
        if self._bell >= 0:
            self._selector.unregister(self._bell)
            os.close(self._bell)
            self._bell = -1
