"""How old the updates of a run were, as a value: what asynchronous strategies record of each commit, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Staleness:
    """`counts`: how many updates there were, by how many commits lay between their reading and committing. `lead`: by
    how many tasks a worker was ahead of the slowest when it began one, at most, which is what SSP bounds. Both are
    empty where workers go in step."""

    counts: Mapping[int, int] = field(default_factory=dict)
    lead: int = 0

    def after(self, ages: Iterable[int], lead: int) -> Staleness:
        """The same with further updates."""
        counts = Counter(self.counts)
        counts.update(ages)
        return Staleness(dict(sorted(counts.items())), max(self.lead, lead))

    def summary(self) -> dict[str, Any] | None:
        """For people, and for `summary.json`; None where there is nothing to tell."""
        if not self.counts:
            return None
        updates = sum(self.counts.values())
        mean = sum(age * count for age, count in self.counts.items()) / updates
        histogram = {str(age): count for age, count in self.counts.items()}
        return {"mean": round(mean, 3), "max": max(self.counts), "lead": self.lead, "histogram": histogram}

    def to_json(self) -> dict[str, Any]:
        return {"counts": [list(pair) for pair in self.counts.items()], "lead": self.lead}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Staleness:
        return cls({int(age): int(count) for age, count in data["counts"]}, int(data["lead"]))
