"""How whole grains are divided among workers of different speed, and how long a step takes then. Pure.

A worker's time is ``cost * (fixed + n)`` seconds for `n` grains and nothing for none: `cost` is its seconds a grain,
`fixed` what a step costs beside its grains, counted in grains. Only arithmetic that gives the same bits on every
machine is used (no logarithm, no plain `sum`, which Python versions round differently), so that all workers come to the
same shares from the same numbers.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence

_SLACK = 1e-9  # rounding must not make a share one grain too large
_TELLING = 0.5  # shares must have changed by so much to tell what does not change with them


def allot(grains: int, costs: Sequence[float], fixed: float = 0.0) -> tuple[int, ...]:
    """Divide `grains` so that whoever is last is done as early as can be. Ties go to the lower rank."""
    assert costs
    assert min(costs) > 0, f"{costs}: a grain takes time"
    active = list(range(len(costs)))
    while True:  # whoever would be late with nothing to do is left out of the even end
        even_s = (grains + fixed * len(active)) / math.fsum(1.0 / costs[worker] for worker in active)
        able = [worker for worker in active if costs[worker] * fixed < even_s]
        if len(able) == len(active) or not able:
            break
        active = able
    shares = [0] * len(costs)
    for worker in active:
        shares[worker] = max(0, int(even_s / costs[worker] - fixed - _SLACK))
    ends = [
        (cost * (fixed + share + 1), worker) for worker, (cost, share) in enumerate(zip(costs, shares, strict=True))
    ]
    heapq.heapify(ends)
    for _ in range(grains - sum(shares)):
        _, worker = ends[0]
        shares[worker] += 1
        heapq.heapreplace(ends, (costs[worker] * (fixed + shares[worker] + 1), worker))
    return tuple(shares)


def at_least_one(shares: Sequence[int]) -> tuple[int, ...]:
    """The same, but with a grain for everyone, as far as there are enough: so that all can be measured."""
    result = list(shares)
    for worker, share in enumerate(result):
        richest = max(range(len(result)), key=lambda other: (result[other], -other))
        if share == 0 and result[richest] > 1:
            result[richest] -= 1
            result[worker] = 1
    return tuple(result)


def step_s(shares: Sequence[int], costs: Sequence[float], fixed: float = 0.0) -> float:
    """Seconds until the last worker is done."""
    return max((cost * (fixed + share) for share, cost in zip(shares, costs, strict=True) if share), default=0.0)


def last_but(shares: Sequence[int], costs: Sequence[float], fixed: float, one: int) -> int:
    """Of the workers other than `one`, the last to be done: who should give a grain away."""
    ends = [(cost * (fixed + share) if share else 0.0) for share, cost in zip(shares, costs, strict=True)]
    return max((worker for worker in range(len(shares)) if worker != one), key=lambda worker: (ends[worker], -worker))


def fixed_part(
    before: Sequence[tuple[int, float]], after: Sequence[tuple[int, float]], doubt: float = 0.0
) -> tuple[float, float] | None:
    """What a step costs beside its grains, counted in grains, and how much weight that has: from (grains, seconds) of
    the workers before and after shares were changed; None where they do not tell.

    It shows in how much less the time of whoever got fewer grains fell, compared with whoever got more, than their
    grains did: what has made all of them slower or quicker meanwhile does not count. `doubt` is the relative error of
    the seconds: it counts against a fixed part, since shares that follow too small a one come right in the end, and
    with too large a one go too far.
    """
    both = [at for at in range(len(before)) if min(before[at][0], after[at][0], before[at][1], after[at][1]) > 0]
    if len(both) < 2:
        return None
    down = min(both, key=lambda at: (after[at][0] / before[at][0], at))
    up = max(both, key=lambda at: (after[at][0] / before[at][0], -at))

    def expected(fixed: float) -> float:
        """How the time of the one changes, over that of the other: the grains alone for 0, nothing for infinity."""
        change = [(fixed + after[at][0]) / (fixed + before[at][0]) for at in (down, up)]
        return change[0] / change[1]

    weight = 1.0 / expected(0.0) - 1.0
    if weight < _TELLING:
        return None
    found = (after[down][1] / before[down][1]) / (after[up][1] / before[up][1]) * (1.0 - doubt)
    low, high = 0.0, sum(grains for grains, _ in after) / len(after)  # more than that, and there is nothing to balance
    if found >= expected(high):
        return high, weight
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle) < found else (low, middle)
    return low, weight


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values: Sequence[float]) -> float:
    """The standard deviation of a row of measurements, relative to their median, taken from the differences of
    neighbours: neither a few outliers nor a lasting change of level counts as noise. 0 for fewer than three."""
    middle = median(values) if values else 0.0
    if len(values) < 3 or middle <= 0:
        return 0.0
    return 1.05 * median([abs(b - a) for a, b in itertools.pairwise(values)]) / middle
