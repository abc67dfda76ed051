"""A round of local steps, as a value: which samples it covers, into what they are cut, what is a task. Pure.

A round covers a stretch of global batches. Each batch is cut into as many *parts* as there are trainers when the round
begins, so that a local step sees as many samples as one of them would in a synchronous step. A *unit* is one part of
one batch: one local step. A *task* is some units in a row: what a trainer leases at a time. The finer the tasks, the
less the others wait at the end of the round for whoever took the last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.core.cursor import GlobalBatch
from shoal.core.grains import Grain


@dataclass(frozen=True)
class Unit:
    """Some grains of batch `at` of a stretch: one local step."""

    at: int
    grains: tuple[Grain, ...]

    @property
    def samples(self) -> int:
        return self.grains[-1].stop - self.grains[0].start


@dataclass(frozen=True)
class Round:
    """`batches` global batches, each in `parts`, with `units` units to a task."""

    batches: int
    parts: int
    units: int

    def to_json(self) -> list[int]:
        return [self.batches, self.parts, self.units]


def plan_round(batches: int, trainers: int, rho: float) -> Round:
    """`rho` is the part of a round by which trainers may end it apart from each other: a task takes a trainer at most
    that part of its round."""
    return Round(batches, trainers, max(1, math.floor(rho * batches)))


def units(plan: Round, stretch: Sequence[GlobalBatch]) -> list[Unit]:
    """The local steps of a round, in order. Every grain is in exactly one."""
    assert len(stretch) == plan.batches, "a round is done with the batches that it was planned for"
    found = []
    equal = (1.0,) * plan.parts
    for at, batch in enumerate(stretch):
        for part in range(plan.parts):
            grains = batch.share(part, equal)
            if grains:
                found.append(Unit(at, grains))
    return found


def tasks(plan: Round, steps: Sequence[int]) -> list[Sequence[int]]:
    """Some units of a round, by number and in order, cut into tasks."""
    return [steps[start : start + plan.units] for start in range(0, len(steps), plan.units)]


def left_over(count: int, done: Sequence[Iterable[int]]) -> list[int]:
    """Of tasks ``0 .. count-1`` those that nobody has done, given what each has. Raises where two have done the same:
    its samples would shape the model twice."""
    seen: set[int] = set()
    for who, mine in enumerate(done):
        for task in mine:
            if task in seen or not 0 <= task < count:
                raise AssertionError(f"trainer {who} has done task {task} of {count}, which was not its own")
            seen.add(task)
    return [task for task in range(count) if task not in seen]
