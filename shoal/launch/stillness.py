"""Whether a run that was asked to stop still moves towards the end of its step. Pure: sights and a clock in, decisions
out.

A step may take long and is waited for. What cannot be waited for is a step that will never end: nobody computes, nobody
gets on, and all are there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.comm.control import Reading
from shoal.launch.hang import Hung

STILL_S = 3.0  # in which nobody moves
_PACE = 2.0  # or so many times as long as a step takes, if that is longer: it may wait for a disk or a network
_COMPUTES = 0.05  # of one processor, at least: the threads that say that a worker lives use less
_LOOKED_S = 1.0  # before that the clocks of processes are too coarse
_NOT_STEPS = frozenset({"save", "meet"})  # what is written or fetched may be far away, and has an end


@dataclass(frozen=True)
class Sight:
    """What can be seen of a worker from outside: its seat, the processor time it has used, and whether it waits for a
    disk."""

    reading: Reading
    computed_s: float
    in_kernel: bool = False


class Stillness:
    """Looks at the workers of a run that was asked to stop, from the first call of `observe` on."""

    def __init__(self) -> None:
        self._since_s = -math.inf  # when somebody was last seen to move
        self._then: dict[str, Sight] = {}  # what they were then
        self._last: dict[str, Sight] = {}

    def observe(self, now_s: float, sights: Mapping[str, Sight], step_s: float) -> list[Hung] | None:
        """None as long as somebody moves, or has lately; else those who do not get on and wait for nobody: none of
        them where all wait for one another. `step_s`: how long a step takes."""
        moves = sights.keys() != self._then.keys() or any(self._moves(key, one, now_s) for key, one in sights.items())
        self._last = dict(sights)
        if moves or not sights:
            self._since_s, self._then = now_s, dict(sights)
            return None
        still_s = now_s - self._since_s
        if still_s <= max(STILL_S, _PACE * step_s):
            return None
        return [
            Hung(key, still_s, one.reading.step, one.reading.phase)
            for key, one in sights.items()
            if not one.reading.waiting
        ]

    def _moves(self, key: str, now: Sight, now_s: float) -> bool:
        then, last, reading = self._then[key], self._last[key], now.reading
        if reading.phase in _NOT_STEPS or _place(reading) != _place(then.reading):
            return True
        if reading.waiting:
            return False
        if now.in_kernel or (reading.ticks != last.reading.ticks and not last.reading.waiting):
            return True
        seen_s = now_s - self._since_s
        return seen_s >= _LOOKED_S and now.computed_s - then.computed_s >= _COMPUTES * seen_s


def _place(reading: Reading) -> tuple[int, str, int, int]:
    return reading.step, reading.phase, reading.steps_done, reading.view
