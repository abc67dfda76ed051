"""Workers on a virtual clock, whose shares a balancer decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.elastic.balance import Balancer, Measured, Rules

Costs = Callable[[int], Sequence[float]]  # seconds a grain of each worker at a step


@dataclass
class Course:
    """What came of a run: the shares at each step, its seconds, and the steps before which shares were changed."""

    balancer: Balancer
    shares: list[tuple[int, ...]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def first_change_after(self, step: int) -> int:
        """How many steps from `step` on were done with the shares of before."""
        return next(change for change in self.changes if change > step) - step


def run(
    costs: Costs,
    steps: int,
    *,
    grains: int = 64,
    noise: float = 0.0,
    shared: float = 1.0,
    fixed: float = 0.0,
    common_s: float = 0.0,
    start: Sequence[float] | None = None,
    seed: int = 0,
    rules: Rules | None = None,
) -> Course:
    """Train `steps` steps. A worker takes ``cost * (fixed + grains)`` seconds, times noise of that relative size, which
    now and then is a long pause; and in each step everyone is up to `shared` times slower."""
    chance = random.Random(seed)
    course = Course(Balancer(grains, start or [1.0] * len(costs(0)), rules=rules))
    for step in range(steps):
        shares = course.balancer.shares
        course.shares.append(shares)
        measured, together = [], chance.uniform(1.0, shared)
        for share, cost in zip(shares, costs(step), strict=True):
            disturbed = max(0.3, chance.gauss(1.0, noise)) if noise else 1.0
            if noise and chance.random() < 0.02:
                disturbed *= 5.0
            measured.append(Measured(float(share), cost * (fixed + share) * disturbed * together if share else 0.0))
        course.seconds.append(common_s + max(one.seconds for one in measured))
        decision = course.balancer.observe(measured, common_s)
        if decision is not None:
            assert decision.weights == course.balancer.shares
            course.changes.append(step + 1)
            course.reasons.append(decision.reason)
    return course


def best_s(grains: int, costs: Sequence[float], fixed: float = 0.0) -> float:
    """Seconds of a step in which all workers end together."""
    return (grains + fixed * len(costs)) / sum(1.0 / cost for cost in costs)
