"""Rounds: when a worker that pushes and pulls must wait for others, as the consistency of the store says."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from shoal.core.consistency import ASP, Consistency
from shoal.store.errors import WorkersBehind
from shoal.store.futures import after, done
from shoal.store.modes import Mode
from shoal.store.tasks import Tasks


class Waiting(Tasks):
    """The part of `KVStore` that keeps workers in step."""

    def __init__(
        self,
        mode: Mode,
        deadline_s: float,
        placement: str,
        consistency: Consistency,
        worker: int | None,
        workers: int | None,
    ) -> None:
        super().__init__(mode, deadline_s, placement)
        self.consistency, self.worker, self.workers = consistency, worker, workers
        self._changes: set[Future[Any]] = set()
        self._noting = threading.Lock()
        self._enrolled = False
        self._clock = 0
        self._allowed = isinstance(consistency, ASP)  # whether this round may be read for

    def _enrol(self) -> None:
        if isinstance(self.consistency, ASP) or self._enrolled:
            return
        workers = [str(number) for number in range(self.workers or 0)]
        rounds = self._wait(self._call("enrol", consistency=str(self.consistency), workers=workers))
        self._clock, self._enrolled = rounds["clocks"].get(str(self.worker), 0), True

    def tick(self, deadline_s: float | None = None) -> int:
        """This worker has ended a round: all it has pushed is with the servers. Returns how many it has ended. The next
        `pull` waits until the consistency allows it to begin another."""
        self.flush(deadline_s)
        self._enrol()
        self._clock += 1
        if self._enrolled:
            self._wait(self._call("tick", deadline_s, worker=str(self.worker), clock=self._clock), deadline_s)
            self._allowed = False
        return self._clock

    def rounds(self) -> dict[str, Any]:
        """The rounds as they stand: `clocks` by worker, and `leads`: how far ahead of the slowest rounds were done, and
        how many of them."""
        found: dict[str, Any] = self._wait(self._call("rounds"))
        return found

    def leave(self, worker: int | None = None, deadline_s: float | None = None) -> None:
        """Nobody waits for this worker (or another one, that is gone) any more."""
        gone = self.worker if worker is None else worker
        self._wait(self._call("leave", deadline_s, worker=str(gone)), deadline_s)

    def _may_read(self, what: str, deadline_s: float | None) -> Future[Any]:
        if self._allowed:
            return done(None)
        self._enrol()
        limit_s = self._deadline(deadline_s)

        def judge(answer: Mapping[str, Any]) -> None:
            if answer["behind"]:
                raise WorkersBehind(what, tuple(answer["behind"]), limit_s)
            self._allowed = True

        return after(self._call("begin", deadline_s, waits=True, worker=str(self.worker)), judge)

    def _note(self, future: Future[Any]) -> Future[Any]:
        with self._noting:
            self._changes.add(future)

        def forget(ended: Future[Any]) -> None:
            with self._noting:
                self._changes.discard(ended)

        future.add_done_callback(forget)
        return future

    def flush(self, deadline_s: float | None = None) -> None:
        """Wait until everything pushed so far is acknowledged; raises the first error."""
        with self._noting:
            changes = list(self._changes)
        for future in changes:
            self._wait(future, deadline_s)

    def _on_lost_state(self) -> None:
        """The servers have gone back to a snapshot, and know nothing of what came later. In the session's thread."""
        self._forget_keys()
        self._enrolled, self._allowed = False, isinstance(self.consistency, ASP)
