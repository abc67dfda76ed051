"""Hurting a running subject, and what it did: kills, freezes, joins. Standard library only.

Every wait has a deadline. What a subject does not manage within it is no figure, but an outcome with its reason.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.commits import Commit, done_again, first_at, longest_pause, usual_step_s
from benchmarks.runners.steplog import Birth
from benchmarks.subjects import Subject

POLL_S = 0.05
CLOCK_S = 0.02  # what the start of a process is known to
START_S = 120.0  # for all workers to have made a step
SETTLE_STEPS = 20  # that all workers make together before one is hurt


class NotInTimeError(Exception):
    """A subject did not do what was waited for, or has ended."""


@dataclass(frozen=True)
class Hurt:
    """One thing done to a run, when, and until when its effects are looked at. Seconds since the epoch."""

    kind: str
    at: float
    until: float


@dataclass(frozen=True)
class Outcome:
    """What came of it, in seconds. None is what had not come about when the watch ended."""

    kind: str
    watched_s: float
    pause_s: float | None  # the longest between two steps of progress
    delay_s: float | None  # by how much that is longer than the median of the run
    steps_done_again: int
    full_strength_s: float | None  # until all workers made a step together again
    # from the start of the newcomer's process, or the fault where it was kept ready, to the first step it has a part in
    newcomer_s: float | None
    newcomer_running_s: float | None  # of which until its script ran
    detected_s: float | None = None  # until the system said that it knew, where it says so


def wait_for(subject: Subject, what: str, ready: Callable[[list[Commit]], bool], timeout_s: float) -> list[Commit]:
    """Watch the commits of `subject` until they are `ready`. Raises `NotInTimeError`."""
    deadline = time.monotonic() + timeout_s
    while True:
        commits = subject.commits()
        if ready(commits):
            return commits
        if (trouble := subject.trouble()) is not None:
            raise NotInTimeError(f"the run ended while waiting for {what}: {trouble}")
        if time.monotonic() > deadline:
            raise NotInTimeError(f"no {what} within {timeout_s:.0f} s")
        time.sleep(POLL_S)


def steps_together(since: float, size: int, count: int = SETTLE_STEPS) -> Callable[[list[Commit]], bool]:
    """Whether `count` steps of progress were made by exactly `size` workers since then, the last of all among them."""

    def ready(commits: list[Commit]) -> bool:
        furthest = max((one.step for one in commits if one.time <= since), default=-1)
        new = [one for one in commits if one.time > since and one.step > furthest]
        steps = {one.step for one in new if one.size == size}
        return len(steps) >= count and max(new, key=lambda one: one.time).size == size

    return ready


def steps_beyond(since: float) -> Callable[[list[Commit]], bool]:
    """Whether there was progress since then."""
    return lambda commits: first_at(commits, since) is not None


def kills(subject: Subject, workers: int, count: int, draw: random.Random, timeout_s: float) -> Iterator[Hurt]:
    """Kill one of the workers, `count` times, each time once all make steps together again."""
    subject.begin(workers)
    wait_for(subject, "step of all workers", steps_together(0.0, workers), START_S)
    for _ in range(count):
        at = _signal_one(subject, signal.SIGKILL, draw)
        wait_for(subject, "step of all workers after a kill", steps_together(at, workers), timeout_s)
        yield Hurt("kill", at, time.time())


def freezes(subject: Subject, workers: int, count: int, draw: random.Random, timeout_s: float) -> Iterator[Hurt]:
    """Freeze one of the workers, `count` times; only once where the subject does not put another in its place."""
    subject.begin(workers)
    wait_for(subject, "step of all workers", steps_together(0.0, workers), START_S)
    for _ in range(count):
        at = _signal_one(subject, signal.SIGSTOP, draw)
        settled = at + 0.5  # what was under way as it froze is over by then
        replaced = False
        with contextlib.suppress(NotInTimeError):
            wait_for(subject, "step after a freeze", steps_beyond(settled), timeout_s)
            wait_for(subject, "step of all workers after a freeze", steps_together(settled, workers), timeout_s / 3)
            replaced = True
        yield Hurt("freeze", at, time.time())
        if not replaced:
            return


def joins(subject: Subject, workers: int, count: int, timeout_s: float) -> Iterator[Hurt]:
    """Have a worker join `workers - 1` others, `count` times, with a leave between."""
    subject.begin(workers - 1)
    since = 0.0
    for number in range(count):
        wait_for(subject, "step without the newcomer", steps_together(since, workers - 1), START_S)
        at = time.time()
        subject.grow()
        wait_for(subject, "step with the newcomer", steps_together(at, workers), timeout_s)
        since = time.time()
        yield Hurt("join", at, since)
        if number + 1 < count:
            subject.shrink()


def _signal_one(subject: Subject, number: signal.Signals, draw: random.Random) -> float:
    """Send a signal to one of the workers, at any moment of a step; returns when."""
    time.sleep(draw.uniform(0.0, 0.2))
    victim = draw.choice(subject.workers())
    at = time.time()
    os.kill(victim, number)
    return at


def outcome(hurt: Hurt, commits: Sequence[Commit], births: Mapping[int, Birth], workers: int) -> Outcome:
    """What `hurt` came to, by the commits and the births of the whole run."""
    newcomer = min(
        (birth for birth in births.values() if hurt.at < birth.running < hurt.until),
        key=lambda birth: birth.running,
        default=None,
    )
    # before the newcomer runs, a step of so many workers is one that was under way
    together = None if newcomer is None else first_at(commits, newcomer.running, workers)
    full_at = None if newcomer is None or together is None else newcomer.running + together
    started = None if newcomer is None else newcomer.started
    if started is not None and started < hurt.at - CLOCK_S:
        started = hurt.at  # a process that was kept ready begins when it is wanted
    pause, usual = longest_pause(commits, hurt.at, hurt.until), usual_step_s(commits)
    return Outcome(
        kind=hurt.kind,
        watched_s=hurt.until - hurt.at,
        pause_s=pause,
        delay_s=None if pause is None or usual is None else pause - usual,
        steps_done_again=done_again(commits, hurt.at, hurt.until),
        full_strength_s=None if full_at is None else full_at - hurt.at,
        newcomer_s=None if full_at is None or started is None else full_at - started,
        newcomer_running_s=None if newcomer is None or started is None else newcomer.running - started,
    )
