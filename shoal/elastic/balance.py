"""Balancing: shares of the global batch follow the measured speed of the workers. A pure policy.

It is told, for each committed step, what every worker computed and how long it took, and answers with a decision or
None. Everyone is told the same, so everyone decides the same at the same step, without a word.

- Speed is the median over a window of steps: one slow step says nothing, four of seven do. It is taken in proportion
  to the others in the same step: what hits all of them alike is no reason to change shares.
- A change must promise more than `gain`, and more than what the noise of the measurements could feign. Small gains
  are looked for in longer windows, large ones in short windows, so a worker that gets four times slower is relieved
  after a few steps, while unsteady clocks move nothing.
- A step costs something beside its grains. How much is learned from what each change of shares did.
- Whoever is so slow that it is better off without any grain gets one from time to time, to see whether it still is;
  the slower it is, the more seldom.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.elastic.allotment import allot, at_least_one, fixed_part, last_but, median, spread, step_s

_LEAST_S = 1e-12  # a clock may say that no time has passed


@dataclass(frozen=True)
class Measured:
    """What one worker did in one step: grains (the last of a batch may count less), and the seconds it computed."""

    grains: float
    seconds: float


@dataclass(frozen=True)
class Shares:
    """The decision: from the next step on, worker i has `weights[i]` whole grains of a full batch."""

    weights: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Rules:
    """When shares are changed. `windows` are steps over which speed is taken, the shortest first."""

    gain: float = 0.05
    windows: tuple[int, ...] = (7, 28, 112)
    certainty: float = 3.5  # standard errors of a median that a gain must exceed `gain` by
    confirmations: int = 2  # looks in a row at which a change must seem worth it
    rest: int = 50  # steps at least between two measurements of a worker without grains
    probing: float = 0.02  # part of the time that those may cost


class Balancer:
    """Balances the workers of one view, in rank order. `costs` are their seconds a grain as far as known, or relative
    guesses; `grains` are those of a full batch."""

    def __init__(self, grains: int, costs: Sequence[float], fixed: float = 0.0, rules: Rules | None = None) -> None:
        self._grains, self._rules = grains, rules or Rules()
        self._known = list(costs)
        self.fixed = fixed  # what a step costs beside its grains, in grains
        self.measured = False  # whether costs are in seconds
        self._told = (0.0, 0.0)  # of the fixed part: a sum of what changes told, and its weight
        self._before: list[tuple[int, float]] | None = None  # grains and seconds of each worker, at the last change
        self._idle = [0] * len(costs)  # steps since a worker was last measured
        self._probed: int | None = None  # who has a grain for a moment
        self._settle(at_least_one(allot(grains, costs, fixed)))

    def _settle(self, shares: tuple[int, ...]) -> None:
        self.shares = self._base = shares
        self._active = [worker for worker, share in enumerate(shares) if share]
        self._seen: deque[Sequence[Measured]] = deque(maxlen=self._rules.windows[-1])
        self._common: deque[float] = deque(maxlen=self._rules.windows[0])
        self._steps = self._confirmed = 0

    # ---- what is known

    def costs(self, window: int | None = None) -> tuple[float, ...]:
        """Seconds a grain of each worker, over the last `window` steps; as last known where it was not measured."""
        window = window if window is not None else self._rules.windows[0]
        if len(self._seen) < window:
            return tuple(self._known)
        level_s, parts = self._recent(window)
        costs = list(self._known)
        for worker, part in parts.items():
            costs[worker] = max(median(part) * median(level_s), _LEAST_S)
        return tuple(costs)

    def _recent(self, window: int) -> tuple[list[float], dict[int, list[float]]]:
        """Of the last steps, up to `window`: the seconds a grain of the median worker, and each one's in proportion."""
        levels: list[float] = []
        parts: dict[int, list[float]] = {worker: [] for worker in self._active}
        for at in range(-min(window, len(self._seen)), 0):
            costs = [self._cost(self._seen[at][worker]) for worker in self._active]
            levels.append(max(median(costs), _LEAST_S))
            for worker, cost in zip(self._active, costs, strict=True):
                parts[worker].append(cost / levels[-1])
        return levels, parts

    def _cost(self, one: Measured) -> float:
        return one.seconds / (self.fixed + one.grains)

    # ---- what is decided

    def observe(self, measured: Sequence[Measured], common_s: float = 0.0) -> Shares | None:
        """A step on a full batch is committed: `measured` by rank; `common_s` is what it took beside computing, whoever
        computes. The last batch of an epoch, whose shares are rounded otherwise, is not for here."""
        self._idle = [0 if one.grains > 0 else idle + 1 for one, idle in zip(measured, self._idle, strict=True)]
        if self._probed is not None:
            return self._end_probe(self._probed, measured)
        self._seen.append(measured)
        self._common.append(common_s)
        self._steps += 1
        if self._steps == self._rules.windows[0]:
            self._learn_unit()
            self._learn_fixed()
        return self._look() or self._probe()

    def _look(self) -> Shares | None:
        """Would other shares be quicker? Windows longer than the shortest are looked at now and then."""
        shortest, *longer = self._rules.windows
        if self._steps < shortest:
            return None
        found = self._better(shortest)
        self._confirmed = self._confirmed + 1 if found is not None else 0
        if found is None:
            fitting = [window for window in longer if window <= self._steps and self._steps % (window // 4) == 0]
            found = next((better for better in map(self._better, fitting) if better is not None), None)
        elif self._confirmed < self._rules.confirmations:
            found = None
        if found is not None:
            self._change(found.weights)
        return found

    def _better(self, window: int) -> Shares | None:
        """The best shares by what the last `window` steps say, where they are worth a change."""
        costs = self.costs(window)
        best = allot(self._grains, costs, self.fixed)
        gain = self._gain(best, costs)
        if gain <= self._rules.gain:
            return None
        doubt = self._rules.certainty * self._error(window)
        return Shares(best, _reason(costs, gain)) if gain > self._rules.gain + doubt else None

    def _error(self, window: int) -> float:
        """The relative standard error of the median of `window` steps, of the worker with the noisiest clock."""
        _, parts = self._recent(4 * window)
        return 1.25 * max(map(spread, parts.values())) / math.sqrt(window)

    def _gain(self, shares: Sequence[int], costs: Sequence[float]) -> float:
        """The part of a step's time that `shares` would save."""
        common_s = median(self._common)
        now_s = common_s + step_s(self._base, costs, self.fixed)
        return 1.0 - (common_s + step_s(shares, costs, self.fixed)) / now_s

    def _change(self, shares: tuple[int, ...]) -> None:
        costs = self.costs()
        self._known = list(costs)
        self._before = [(n, cost * (self.fixed + n)) for n, cost in zip(self._base, costs, strict=True)]
        self._settle(shares)

    def _learn_unit(self) -> None:
        """Guesses are relative: with the first measurements those that could not be measured yet become seconds."""
        if self.measured:
            return
        now = self.costs()
        unit = median([now[worker] / self._known[worker] for worker in self._active])
        self._known = [known * unit for known in self._known]
        self.measured = True

    def _learn_fixed(self) -> None:
        """The change before has been measured: see what of a step's time did not change with the shares."""
        if self._before is None:
            return
        after = [(n, cost * (self.fixed + n)) for n, cost in zip(self.shares, self.costs(), strict=True)]
        found = fixed_part(self._before, after, self._error(self._rules.windows[0]))
        self._before = None
        if found is not None:
            total, weight = self._told[0] + found[0] * found[1], self._told[1] + found[1]
            self.fixed = total / weight
            self._told = (total / 2, weight / 2)  # the next change counts more than those before

    # ---- whoever has no grains

    def _probe(self) -> Shares | None:
        if all(self.shares):
            return None
        costs = self.costs()
        for worker, share in enumerate(self.shares):
            if share == 0 and self._idle[worker] >= self._rest_of(worker, costs):
                giver = last_but(self.shares, costs, self.fixed, worker)
                if self.shares[giver] < 1:
                    return None
                change = {worker: 1, giver: self.shares[giver] - 1}
                self._probed = worker
                self.shares = tuple(change.get(rank, n) for rank, n in enumerate(self.shares))
                return Shares(self.shares, f"one grain for worker {worker}, to see whether it is still so slow")
        return None

    def _rest_of(self, worker: int, costs: Sequence[float]) -> float:
        """Steps without a measurement of `worker`: one takes longer than a step, and must not cost much on average."""
        usual_s = median(self._common) + step_s(self.shares, costs, self.fixed)
        longer_s = costs[worker] * (self.fixed + 1) - usual_s
        return max(float(self._rules.rest), longer_s / (self._rules.probing * usual_s) if usual_s > 0 else 0.0)

    def _end_probe(self, worker: int, measured: Sequence[Measured]) -> Shares | None:
        if measured[worker].grains <= 0:
            return None  # it was not its turn yet
        self._known[worker] = max(self._cost(measured[worker]), _LEAST_S)
        self._probed, self.shares = None, self._base
        best = allot(self._grains, self.costs(), self.fixed)
        if best[worker] and self._gain(best, self.costs()) > self._rules.gain:
            self._change(best)
            self._before = None  # what is known of that worker is one measurement
            return Shares(best, f"worker {worker} is quicker than it was")
        return Shares(self._base, f"worker {worker} is still too slow for a grain")


def _reason(costs: Sequence[float], gain: float) -> str:
    workers = range(len(costs))
    quick, slow = min(workers, key=lambda one: (costs[one], one)), max(workers, key=lambda one: (costs[one], one))
    return (
        f"a grain takes worker {quick} {1e3 * costs[quick]:.3g} ms and worker {slow} {1e3 * costs[slow]:.3g} ms: "
        f"steps should take {gain:.0%} less time"
    )


def starting_costs(
    keys: Sequence[str], guesses: Sequence[float], known: dict[str, float], alike: float = 1.2
) -> tuple[float, ...]:
    """Seconds a grain of the members of a new view: as measured where `known` by key, else from `guesses` of speed,
    which count only where they differ by more than `alike`."""
    assert min(guesses) > 0
    if max(guesses) <= alike * min(guesses):
        guesses = [1.0] * len(guesses)
    measured = [known[key] * guess for key, guess in zip(keys, guesses, strict=True) if key in known]
    unit = median(measured) if measured else 1.0
    return tuple(known.get(key, unit / guess) for key, guess in zip(keys, guesses, strict=True))
