"""What a supervisor wants done, as values. Whoever holds the processes carries it out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Abort:
    """Set the abort word: every wait of a worker for another ends."""


@dataclass(frozen=True)
class RequestStop:
    """Ask the workers to save and end after their step."""


@dataclass(frozen=True)
class Send:
    """Send a signal to these workers."""

    numbers: tuple[int, ...]
    signal: int


@dataclass(frozen=True)
class Start:
    """Start workers with these numbers, at once."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Tell:
    """The run goes on without this worker: show and record why. `remaining`: workers that go on with what they have.
    `replacement`: which one is started in its place, and of how many that may be; None: none is."""

    number: int
    remaining: int
    replacement: tuple[int, int] | None


Decision = Abort | RequestStop | Send | Start | Tell
