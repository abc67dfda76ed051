"""Tasks: a stretch is opened, workers lease its tasks one at a time, and a commit ends each. With the first server."""

from __future__ import annotations

from shoal.core.consistency import Consistency
from shoal.store.answers import Leased, NothingLeft, Progress, Wait
from shoal.store.asking import maker
from shoal.store.operations import Close, GetProgress, Join, Lease, Open, Release, Task
from shoal.store.renewing import Renewing


class Tasks(Renewing):
    """The part of `KVStore` that deals out work. Workers are known by names."""

    def open(
        self,
        stretch: int,
        count: int,
        consistency: Consistency | str,
        workers: tuple[str, ...],
        instead: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        """Begin a stretch of `count` tasks; the open one again changes nothing. See `shoal.store.operations.Open`."""
        make = maker(Open, stretch=stretch, count=count, consistency=str(consistency), workers=workers, instead=instead)
        self._wait(self._change(0, make, f"open stretch {stretch}", deadline_s), deadline_s)

    def end_early(self, stretch: int, deadline_s: float | None = None) -> None:
        """The stretch ends with the tasks that somebody has had: `progress` says how many those are."""
        self._wait(self._change(0, maker(Close, stretch=stretch), f"close stretch {stretch}", deadline_s), deadline_s)

    def lease(self, worker: str, deadline_s: float | None = None) -> Task | Wait | NothingLeft:
        """The next task of this worker, as soon as it may begin one. `Wait` when `deadline_s` is over: it says who is
        waited for. `NothingLeft`: all tasks are committed."""
        make = maker(Lease, worker=worker)
        # a stream of its own: a lease may wait, and what the client does meanwhile goes on under other numbers
        future = self._change(0, make, f"lease of {worker}", deadline_s, waits=True, stream=f"/lease/{worker}")
        answer: Leased | Wait | NothingLeft = self._wait(future, deadline_s)
        return Task(answer.stretch, answer.task, worker, answer.lead) if isinstance(answer, Leased) else answer

    def join(self, worker: str, deadline_s: float | None = None) -> None:
        """A worker takes part from now on."""
        self._wait(self._change(0, maker(Join, worker=worker), f"join of {worker}", deadline_s), deadline_s)

    def release(self, worker: str, deadline_s: float | None = None) -> None:
        """A worker is gone: its task is free again, and nobody waits for it."""
        self._wait(self._change(0, maker(Release, worker=worker), f"release of {worker}", deadline_s), deadline_s)

    def progress(self, deadline_s: float | None = None) -> Progress:
        """How far the stretch is."""
        answer: Progress = self._wait(self._read(0, GetProgress(), "progress", deadline_s), deadline_s)
        return answer
