"""What committed steps tell: how long training stood still, and what was done again. Pure; standard library only.

A system is looked at from outside, in the same way whichever it is: as a series of commits, each a step that became
part of the model. Only steps that nobody had committed before count as progress, so that a system that goes back to
a checkpoint stands still until it is past the point where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Commit:
    """A step that became part of the model, as one process wrote it down. `size` is how many workers made it."""

    time: float  # seconds since the epoch
    step: int
    size: int
    pid: int = 0  # 0: written down for all of them by whoever is first


def of_log(lines: Iterable[str], pid: int) -> list[Commit]:
    """The commits of a step log: a line has the time, the step and the number of workers."""
    fields = [line.split() for line in lines]
    return [Commit(float(time), int(step), int(size), pid) for time, step, size in fields]


def of_events(events: Iterable[Mapping[str, Any]], size: int = 0) -> list[Commit]:
    """The commits of a Shoal run's events. `size` is the number of members before the first of them."""
    found: list[Commit] = []
    for event in events:
        if event["kind"] == "run_started":
            size = size or int(event["workers"])
        elif event["kind"] == "view":
            size = len(event["members"])
        elif event["kind"] == "step":
            found.append(Commit(float(event["time"]), int(event["cursor"]["step"]), size))
    return found


def progress(commits: Iterable[Commit]) -> list[Commit]:
    """Of each step its first commit, in the order of time; steps below one committed before are left out."""
    furthest, found = -1, []
    for commit in sorted(commits, key=lambda one: one.time):
        if commit.step > furthest:
            furthest = commit.step
            found.append(commit)
    return found


def longest_pause(commits: Iterable[Commit], since: float, until: float) -> float | None:
    """The longest time between two steps of progress, from the last one before `since` to the last before `until`.

    None where there was no progress after `since`: how long it would have lasted is not known.
    """
    made = progress(commits)
    before = [one for one in made if one.time <= since][-1:]
    after = [one for one in made if since < one.time <= until]
    gaps = [later.time - earlier.time for earlier, later in pairwise(before + after)]
    return max(gaps, default=None) if after else None


def first_at(commits: Iterable[Commit], since: float, size: int = 1) -> float | None:
    """Seconds from `since` to the first step of progress that at least `size` workers made."""
    made = [one.time for one in progress(commits) if one.time > since and one.size >= size]
    return made[0] - since if made else None


def done_again(commits: Sequence[Commit], since: float, until: float) -> int:
    """How many steps that were committed before `since` were committed once more between then and `until`.

    A process that writes down late what the others wrote before has not done it again: its own steps only grow.
    """
    furthest = max((one.step for one in commits if one.time <= since), default=-1)
    own: dict[int, int] = {}
    again: set[int] = set()
    for commit in sorted(commits, key=lambda one: one.time):
        if commit.time <= since:
            own[commit.pid] = max(own.get(commit.pid, -1), commit.step)
        elif commit.time <= until and commit.step <= furthest and own.get(commit.pid, furthest) >= commit.step:
            again.add(commit.step)
    return len(again)


def usual_step_s(commits: Iterable[Commit]) -> float | None:
    """The median time between two steps of progress."""
    gaps = [later.time - earlier.time for earlier, later in pairwise(progress(commits))]
    return median(gaps) if gaps else None
