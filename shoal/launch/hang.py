"""Which workers hang: seen from outside, by their progress. Pure: readings and a clock in, decisions out.

A worker that hangs may well be alive, send its heartbeat and use its processor, so only its progress counts. Those that
wait for it in a collective operation make no progress either: they say that they wait, and are victims, not culprits.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.comm.control import Reading

_RECENT = 50  # steps of all workers that the median is taken of


@dataclass(frozen=True)
class Hung:
    """A worker that has made no progress for `seconds`, last seen in `phase` of `step`."""

    key: str
    seconds: float
    step: int
    phase: str


@dataclass(frozen=True)
class Pace:
    """How long steps take: the median of recent ones, 0 before one was measured, and the longest that was seen, the
    first with what it compiles and loads among them."""

    usual_s: float = 0.0
    longest_s: float = 0.0


@dataclass
class _Watched:
    """What the judge remembers of a worker."""

    reading: Reading
    since_s: float  # when it was last seen to get on, or to wait for others
    step_s: float  # when its last step was seen done, or it was first seen


class HangJudge:
    """A worker hangs when it has not got on for `hang_s` and for `hang_steps` times the median time of a step,
    whichever is longer. Until its first step is done, which may take long to compile or to load, the limit is
    `start_s`.

    The median is over the recent steps of all workers, because one that has just come knows none of its own.
    """

    def __init__(self, hang_s: float, hang_steps: float, start_s: float) -> None:
        self._hang_s, self._hang_steps, self._start_s = hang_s, hang_steps, start_s
        self._watched: dict[str, _Watched] = {}
        self._steps: deque[float] = deque(maxlen=_RECENT)
        self._longest_s = 0.0

    @property
    def pace(self) -> Pace:
        """How long steps take."""
        return Pace(statistics.median(self._steps) if self._steps else 0.0, self._longest_s)

    @property
    def limit_s(self) -> float:
        """How long a worker that has done a step may go without progress."""
        return max(self._hang_s, self._hang_steps * self.pace.usual_s)

    def observe(self, now_s: float, readings: Mapping[str, Reading]) -> list[Hung]:
        """Take in what the seats of all running workers show at `now_s` and return those that hang, the longest first.

        A key that is not in `readings` is forgotten: a worker that has ended. One that hangs is returned at every call
        until it gets on or is forgotten.
        """
        for gone in self._watched.keys() - readings.keys():
            del self._watched[gone]
        for key, reading in readings.items():
            self._take_in(key, reading, now_s)
        limit_s = self.limit_s
        hung = []
        for key, watched in self._watched.items():
            reading = watched.reading
            allowed_s = limit_s if reading.steps_done > 0 else max(limit_s, self._start_s)
            still_s = now_s - watched.since_s
            if not reading.waiting and still_s > allowed_s:
                hung.append(Hung(key, still_s, reading.step, reading.phase))
        return sorted(hung, key=lambda one: (-one.seconds, one.key))

    def _take_in(self, key: str, reading: Reading, now_s: float) -> None:
        before = self._watched.get(key)
        if before is None or reading.steps_done < before.reading.steps_done:
            # new, or another worker has taken the seat
            self._watched[key] = _Watched(reading, now_s, now_s)
            return
        done = reading.steps_done - before.reading.steps_done
        if done > 0:
            self._longest_s = max(self._longest_s, now_s - before.step_s)
            if before.reading.steps_done > 0:  # the first step is no measure: it compiles, and fills caches
                self._steps.extend([(now_s - before.step_s) / done] * min(done, _RECENT))
            before.step_s = now_s
        # who waits, or has just stopped waiting, is not late by its own doing
        if reading.ticks != before.reading.ticks or reading.waiting or before.reading.waiting or done > 0:
            before.since_s = now_s
        before.reading = reading
