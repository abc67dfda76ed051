"""How far each worker is that pushes and pulls without tasks: the rounds of a store, and who must wait for whom.

A worker's *clock* counts the rounds it has ended (`tick`). The consistency says whether it may read for the next one.
Clocks are stated, not counted up, so that saying something twice changes nothing. Pure, like the shard.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.core.consistency import ASP, Consistency, parse


class Rounds:
    """Clocks by worker, and the bound between them."""

    def __init__(self, consistency: Consistency | None = None) -> None:
        self.consistency: Consistency = consistency or ASP()
        self.clocks: dict[str, int] = {}
        self.leads: Counter[int] = Counter()  # clock ahead of the slowest while a round was done -> how many rounds

    def enrol(self, consistency: str, workers: list[str]) -> None:
        """These workers take part from now on, under this consistency. One that comes later starts at the slowest's."""
        self.consistency = parse(consistency)
        start = min(self.clocks.values(), default=0)
        for worker in workers:
            self.clocks.setdefault(worker, start)

    def tick(self, worker: str, clock: int) -> None:
        """The worker has ended round number `clock`. What it says again, or late, changes nothing."""
        if worker in self.clocks and clock > self.clocks[worker]:
            self.leads[clock - 1 - min(self.clocks.values())] += 1
            self.clocks[worker] = clock

    def leave(self, worker: str) -> None:
        """Nobody waits for this worker any more."""
        self.clocks.pop(worker, None)

    def behind(self, worker: str) -> tuple[str, ...]:
        """The workers that must end a round before this one may begin its next; none: it may begin."""
        clock = self.clocks.get(worker)
        if clock is None:
            return ()
        return tuple(name for name, other in self.clocks.items() if not self.consistency.allows(clock, other))

    def dump(self) -> dict[str, Any]:
        return {
            "consistency": str(self.consistency),
            "clocks": self.clocks.copy(),
            "leads": {str(lead): count for lead, count in self.leads.items()},
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> Rounds:
        rounds = cls(parse(data["consistency"]))
        rounds.clocks = dict(data["clocks"])
        rounds.leads = Counter({int(lead): count for lead, count in data["leads"].items()})
        return rounds
