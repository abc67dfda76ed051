"""What to do about a read that fails or does not come back. Pure: decisions are values, clocks are somebody else's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """How long and how often a read is tried. A try that is silent for `stall_s` gets another one beside it, and the
    first that answers counts; after a failure there is a pause, twice as long each time."""

    tries: int = 10
    at_once: int = 4
    stall_s: float = 3.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    deadline_s: float = 120.0


@dataclass(frozen=True)
class Standing:
    """How a read stands. `youngest_s`: how long the latest try that still runs has been silent."""

    elapsed_s: float
    running: int = 0
    youngest_s: float = 0.0
    failed: int = 0
    since_failure_s: float = 0.0


@dataclass(frozen=True)
class Try:
    """Begin a try."""


@dataclass(frozen=True)
class Wait:
    """See what comes within so many seconds."""

    seconds: float


@dataclass(frozen=True)
class GiveUp:
    """It will not come."""

    reason: str


Move = Try | Wait | GiveUp


def next_move(patience: Patience, now: Standing) -> Move:
    """What to do next."""
    left_s = patience.deadline_s - now.elapsed_s
    if left_s <= 0:
        return GiveUp(f"no answer within {patience.deadline_s:g} s")
    spent = now.running + now.failed >= patience.tries
    if now.running:
        full = spent or now.running >= patience.at_once
        quiet_s = patience.stall_s - now.youngest_s
        return Wait(left_s) if full else Wait(min(quiet_s, left_s)) if quiet_s > 0 else Try()
    if spent:
        return GiveUp(f"{now.failed} tries failed")
    pause_s = pause_after(patience, now.failed) - now.since_failure_s
    return Wait(min(pause_s, left_s)) if pause_s > 0 else Try()


def pause_after(patience: Patience, failed: int) -> float:
    """How long to wait after so many failures."""
    return 0.0 if failed == 0 else min(patience.first_pause_s * 2.0 ** (failed - 1), patience.longest_pause_s)
