"""How old the updates of a run were, as a value: what asynchronous strategies record of each commit, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_TOO_FAR = 4.0  # steps by which what is old is carried on; measured: see docs/choosing.md


@dataclass(frozen=True)
class Aging:
    """What old updates come to: `damping`, whether one of age s has 1 / (1 + s) of the learning rate; the optimizer's
    `momentum`, which lets an update act over 1 / (1 - momentum) steps; how many work at the same time (`crew`)."""

    damping: bool
    momentum: float
    crew: int

    @property
    def expected(self) -> float:
        """About how old an update is when it counts: each of the others commits one meanwhile."""
        return self.crew - 1.0

    def rate(self, age: float) -> float:
        """What is left of the learning rate."""
        return 1 / (1 + age) if self.damping else 1.0

    def risk(self, age: float) -> str:
        """What to say to a user whose updates are of this age; nothing where learning does not suffer much."""
        steps = 1 / (1 - min(self.momentum, 0.999))
        if age * self.rate(age) * steps < _TOO_FAR:
            return ""
        carried = f", and momentum={self.momentum:g} carries each on over {steps:.0f} steps" if self.momentum else ""
        milder = "a lower momentum or learning rate" if self.momentum else "a lower learning rate"
        damped = "" if self.damping else ", strategy async, which damps old updates,"
        return (
            f"updates are about {age:.1f} commits old when they count{carried}: accuracy is at risk. "
            f"Use {milder}{damped} or server.consistency=bsp"
        )


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

    def mean(self, of: Callable[[int], float] = float) -> float:
        """The mean age, or that of a function of it."""
        return sum(of(age) * count for age, count in self.counts.items()) / sum(self.counts.values())

    def summary(self, aging: Aging | None = None) -> dict[str, Any] | None:
        """For people, and for `summary.json`; None where there is nothing to tell."""
        if not self.counts:
            return None
        histogram = {str(age): count for age, count in self.counts.items()}
        told = {"mean": round(self.mean(), 3), "max": max(self.counts), "lead": self.lead, "histogram": histogram}
        if aging is None:
            return told
        risk = aging.risk(self.mean())
        return {**told, "rate": round(self.mean(aging.rate), 3), **({"warning": risk} if risk else {})}

    def to_json(self) -> dict[str, Any]:
        return {"counts": [list(pair) for pair in self.counts.items()], "lead": self.lead}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Staleness:
        return cls({int(age): int(count) for age, count in data["counts"]}, int(data["lead"]))
