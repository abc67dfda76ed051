"""How many workers a run should have, from what computing and sending have cost. Pure: a function of what all trainers
were told, so all of them agree.

Computing is shared out, so n workers take 1/n of the time for a step. Sending grows with n, and a lone worker sends
nothing. What is wished is the number with the shortest step, but only where that is worth a change: it must be a good
deal shorter, several rounds in a row must say so, and after every change some rounds pass before the next is thought
of. What sending costs is remembered, so that a worker that was left alone by a slow link does not try it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shoal.strategies.pacing import MOST, SHARE

GAIN = 0.1  # of the time of a step, that a change must promise
VOTES = 3  # rounds in a row that must agree
REST = 3  # rounds after a change of the membership in which nothing is asked for
_AT_ONCE = 2  # times as many workers as there are, at most: what is known of few is a guess for many


@dataclass(frozen=True)
class Bounds:
    """The fewest and the most workers that may be wished for."""

    least: int
    most: int


@dataclass(frozen=True)
class Measured:
    """What a round of `workers` has shown: seconds of computing for a step, of the slowest, and of one average.
    `spread`: over how many steps an average can be spread. `share`: of the time, that averages take however quick they
    are, because they come the more often. `coded`: everyone is sent what everyone else has coded."""

    workers: int
    computing_s: float
    sending_s: float
    taken: float  # of the time of this round, by sending
    spread: int
    share: float = 0.0
    coded: bool = False


@dataclass(frozen=True)
class SizeWish:
    """The run should have so many workers, and why."""

    workers: int
    reason: str


@dataclass(frozen=True)
class Sizing:
    """What is remembered from round to round. `votes` rounds in a row were for a change towards `towards`; `asked` is
    what was wished for in this `view`; `unit_s` is what an average costs for each time that the model is sent."""

    view: int = 0
    votes: int = 0
    towards: int = 0
    rest: int = REST
    asked: int | None = None
    unit_s: float | None = None

    def to_json(self) -> list[Any]:
        return [self.view, self.votes, self.towards, self.rest, self.asked, self.unit_s]


def measured(
    workers: int, h: int | str, planned: int, steps: int, computing_s: float, sending_s: float, coded: bool
) -> Measured:
    """A round of `steps`, of which `planned` were wished for, with `incremental.h` as stated. A round that was cut
    short (by the end of an epoch, a save) says how long one can be."""
    total = computing_s + sending_s
    can_grow = not isinstance(h, int) and steps >= planned
    return Measured(
        workers,
        computing_s / max(steps, 1),
        sending_s,
        sending_s / total if total > 0 else 0.0,
        MOST if can_grow else max(steps, 1),
        SHARE if h == "auto" else 0.0,
        coded,
    )


def sent(workers: int, coded: bool) -> float:
    """How many times each of so many workers sends the model in one average: by an all-reduce, or to everyone."""
    if workers == 1:
        return 0.0
    return workers - 1.0 if coded else 2.0 * (workers - 1) / workers


def step_s(workers: int, seen: Measured, unit_s: float) -> float:
    """The predicted seconds of a step with so many workers, where an average costs `unit_s` for each time that the
    model is sent."""
    computing_s = seen.computing_s * seen.workers / workers
    if workers == 1:
        return computing_s
    sending_s = unit_s * sent(workers, seen.coded) / seen.spread
    return max(computing_s / (1.0 - seen.share), computing_s + sending_s)


def best(seen: Measured, unit_s: float | None, bounds: Bounds) -> int:
    """The number of workers that is worth a change, or the one that there is. A lone worker that has never sent
    anything (`unit_s` is None) does not know what that costs: it tries one more."""
    workers = seen.workers
    if unit_s is None:
        return min(max(2, bounds.least), bounds.most) if workers == 1 else workers
    most = max(bounds.least, min(bounds.most, _AT_ONCE * workers))
    found = min(range(bounds.least, most + 1), key=lambda number: (step_s(number, seen, unit_s), number))
    worth = step_s(found, seen, unit_s) <= (1.0 - GAIN) * step_s(workers, seen, unit_s)
    return found if worth else workers


def next_size(last: Sizing, view: int, seen: Measured, bounds: Bounds) -> tuple[Sizing, SizeWish | None]:
    """What is known after a round of `view`, and what is wished for, if something is."""
    unit_s = _unit(last.unit_s, seen)
    if view != last.view:
        last = Sizing(view)
    now = replace(last, unit_s=unit_s)
    if now.rest > 0:
        return replace(now, rest=now.rest - 1), None
    wanted = best(seen, unit_s, bounds)
    under_way = now.asked is not None and (wanted > seen.workers) == (now.asked > seen.workers)
    if wanted == seen.workers or under_way:
        return replace(now, votes=0), None
    votes, towards = 1, wanted
    if now.votes and (wanted > seen.workers) == (now.towards > seen.workers):
        votes = now.votes + 1
        towards = min(wanted, now.towards, key=lambda number: abs(number - seen.workers))
    if votes < VOTES:
        return replace(now, votes=votes, towards=towards), None
    asked = replace(now, votes=0, towards=0, rest=REST, asked=towards)
    return asked, SizeWish(towards, _reason(seen, towards))


def _unit(before: float | None, seen: Measured) -> float | None:
    """What is known of the cost of sending once, after another measurement."""
    if seen.workers == 1:
        return before
    now = seen.sending_s / sent(seen.workers, seen.coded)
    return now if before is None else (before + now) / 2


def _reason(seen: Measured, wanted: int) -> str:
    change = f"{seen.workers} worker{'' if seen.workers == 1 else 's'} -> {wanted}"
    if seen.workers == 1:
        return f"one worker computes alone, and more may help it: {change}"
    return f"sending takes {100 * seen.taken:.0f} % of the time: {change}"
