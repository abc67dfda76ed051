"""Deals out the tasks of a stretch: who may begin one, who holds which, and which are committed."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from shoal.core.consistency import BSP, Consistency, parse


@dataclass(frozen=True)
class Leased:
    """The worker holds this task."""

    task: int


@dataclass(frozen=True)
class Wait:
    """No task now, because of these workers: they are behind (``bound``), or hold all that is left (``leased``)."""

    cause: Literal["bound", "leased"]
    workers: tuple[str, ...]


@dataclass(frozen=True)
class NothingLeft:
    """All tasks are committed."""


@dataclass(frozen=True)
class Refused:
    """It was not done, and nothing is changed. `why` is for people."""

    why: str


class Board:
    """Tasks, leases and clocks of one stretch. Pure: its only clocks are counts of commits.

    A worker holds at most one lease. Its clock counts what it has committed in this stretch; one that joins starts at
    the minimum of the living. It may begin a task only while its clock is within the consistency's bound of that
    minimum, so one that lives and does nothing holds the others back: `release` it, and its lease is free again and
    nobody waits for it. Where no task is free nobody can begin one, so nobody is held back by who has nothing to do.
    """

    def __init__(self) -> None:
        self.stretch: int | None = None
        self.count = 0
        self._opened = 0  # the count as it was before the stretch was closed
        self.consistency: Consistency = BSP()
        self.committed: set[int] = set()
        self.leases: dict[str, int] = {}  # worker -> task
        self.clocks: dict[str, int] = {}  # of the living
        self.staleness: Counter[int] = Counter()  # versions between reading and committing -> commits, of all stretches
        self.leads: Counter[int] = Counter()  # how far ahead of the slowest a task was begun -> tasks, of all stretches
        self._next = 0  # tasks from here on have never been leased
        self._returned: list[int] = []  # a heap of tasks whose holders were released

    @property
    def finished(self) -> bool:
        """Whether every task of the stretch is committed."""
        return len(self.committed) == self.count

    @property
    def free(self) -> int:
        """How many tasks are neither committed nor leased."""
        return self.count - self._next + len(self._returned)

    def open(
        self, stretch: int, count: int, consistency: Consistency, workers: tuple[str, ...], instead: bool = False
    ) -> Refused | None:
        """Begin a stretch of tasks 0 to `count` - 1. The open one again changes nothing. An earlier one is refused, and
        so is a later one while tasks are left, unless `instead` gives those up."""
        if stretch == self.stretch:
            same = count == self._opened and consistency == self.consistency
            return None if same else Refused(f"stretch {stretch} is open with {self._opened} tasks, {self.consistency}")
        if self.stretch is not None and stretch < self.stretch:
            return Refused(f"stretch {stretch} is over: {self.stretch} is open")
        if not self.finished and not instead:
            left = self.count - len(self.committed)
            return Refused(f"stretch {stretch} cannot begin: {left} tasks of stretch {self.stretch} are not committed")
        self.stretch, self.count, self.consistency = stretch, count, consistency
        self._opened = count
        self.committed, self.leases = set(), {}
        self.clocks = dict.fromkeys(workers, 0)
        self._next, self._returned = 0, []
        return None

    def close(self, stretch: int) -> Refused | None:
        """The stretch ends with the tasks that somebody has had: no other is begun. Again changes nothing."""
        if stretch != self.stretch:
            return Refused(f"stretch {stretch} cannot be closed: {self.stretch} is open")
        self.count = self._next
        return None

    def offer(self, worker: str) -> Leased | Wait | NothingLeft | Refused:
        """What `lease` would answer; changes nothing."""
        if worker not in self.clocks:
            return Refused(f"{worker} takes no part in stretch {self.stretch}: it has to join first")
        if worker in self.leases:
            return Leased(self.leases[worker])
        if self.finished:
            return NothingLeft()
        if not self.free:
            return Wait("leased", tuple(sorted(self.leases)))
        slowest = min(self.clocks.values())
        if not self.consistency.allows(self.clocks[worker], slowest):
            return Wait("bound", tuple(sorted(one for one, at in self.clocks.items() if at == slowest)))
        return Leased(self._returned[0] if self._returned else self._next)

    def lease(self, worker: str) -> Leased | Wait | NothingLeft | Refused:
        """The next task for a worker; the one it holds, if it holds one."""
        answer = self.offer(worker)
        if isinstance(answer, Leased) and worker not in self.leases:
            self.leases[worker] = self._take()
            self.leads[self.lead(worker)] += 1
        return answer

    def lead(self, worker: str) -> int:
        """How many tasks more than the slowest a worker has committed."""
        return self.clocks[worker] - min(self.clocks.values())

    def _take(self) -> int:
        if self._returned:
            return heapq.heappop(self._returned)
        self._next += 1
        return self._next - 1

    def check(self, stretch: int, task: int, worker: str) -> Refused | None:
        """What `commit` would answer; changes nothing."""
        if stretch != self.stretch:
            return Refused(f"task {task} of stretch {stretch}: stretch {self.stretch} is open")
        if task in self.committed:
            return Refused(f"task {task} is committed already")
        if self.leases.get(worker) != task:
            return Refused(f"task {task} is not in the hands of {worker}")
        return None

    def commit(self, stretch: int, task: int, worker: str, staleness: int = 0) -> Refused | None:
        """The worker has done the task. Refused if it does not hold it, or it is committed already."""
        refused = self.check(stretch, task, worker)
        if refused is None:
            del self.leases[worker]
            self.committed.add(task)
            self.clocks[worker] += 1
            self.staleness[staleness] += 1
        return refused

    def release(self, worker: str) -> None:
        """A worker is gone: its lease is free again, and nobody waits for it."""
        self.clocks.pop(worker, None)
        if (task := self.leases.pop(worker, None)) is not None:
            heapq.heappush(self._returned, task)

    def join(self, worker: str) -> None:
        """A worker takes part from now on. One that does already goes on as it was."""
        self.clocks.setdefault(worker, min(self.clocks.values(), default=0))

    def dump(self) -> dict[str, Any]:
        """All of it, as data that JSON and msgpack can hold."""
        return {
            "stretch": self.stretch,
            "count": self.count,
            "opened": self._opened,
            "consistency": str(self.consistency),
            "committed": _runs(self.committed),
            "leases": sorted(self.leases.items()),
            "clocks": sorted(self.clocks.items()),
            "staleness": sorted(self.staleness.items()),
            "leads": sorted(self.leads.items()),
            "next": self._next,
            "returned": sorted(self._returned),
        }

    def restore(self, meta: dict[str, Any]) -> None:
        """Become the board that was dumped."""
        self.stretch, self.count, self._opened = meta["stretch"], meta["count"], meta["opened"]
        self.consistency = parse(meta["consistency"])
        self.committed = {task for start, stop in meta["committed"] for task in range(start, stop)}
        self.leases, self.clocks = dict(meta["leases"]), dict(meta["clocks"])
        self.staleness, self.leads = Counter(dict(meta["staleness"])), Counter(dict(meta["leads"]))
        self._next, self._returned = meta["next"], list(meta["returned"])


def _runs(tasks: set[int]) -> list[tuple[int, int]]:
    """Ranges ``[start, stop)`` that cover exactly these numbers: tasks are committed nearly in order."""
    runs: list[tuple[int, int]] = []
    for task in sorted(tasks):
        if runs and runs[-1][1] == task:
            runs[-1] = (runs[-1][0], task + 1)
        else:
            runs.append((task, task + 1))
    return runs
