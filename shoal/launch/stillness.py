"""Which workers of a run that was asked to stop no longer move towards the end of their step. Pure: sights and a clock
in, decisions out.

A step may take long and is waited for. What cannot be waited for is a step that will never end: nobody gets on, and
nobody computes, or who does has done so for much longer than any step has taken.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.comm.control import Reading
from shoal.elastic.status import Still
from shoal.launch.hang import Pace

STILL_S = 3.0  # in which a worker does not move
LEASES = 1.5  # or so many, with workers on other hosts: what is known of them may be almost as old
_PACE = 2.0  # or so many times as long as a step takes, if that is longer: it may wait for a disk or a network
BUSY_S = 5.0  # in which a worker computes, and does not get on
_BUSY_PACE = 10.0  # or so many times as long as a step takes, or as long as the longest one took
_COMPUTES = 0.05  # of one processor, at least: the threads that say that a worker lives use less
_LOOKED_S = 1.0  # before that the clocks of processes are too coarse
_NOT_STEPS = frozenset({"save", "meet"})  # what is written or fetched may be far away, and has an end
# What every step does, so that it is known how long it takes. In all else the script may compute what it likes: its
# callbacks run in "update", its own loops between two steps as well, its metrics in "evaluate", its data set in "data".
_ROUTINE = frozenset({"forward", "backward", "reduce"})


@dataclass(frozen=True)
class Sight:
    """What can be seen of a worker from outside: its seat, the processor time it has used, and whether it waits for a
    disk."""

    reading: Reading
    computed_s: float
    in_kernel: bool = False


@dataclass
class _Watched:
    """What is remembered of a worker."""

    moved: Sight  # what it was when it was last seen to move
    moved_s: float
    got_on_s: float  # when it was last seen to get on, or to wait: who only computes does not
    last: Sight


class Stillness:
    """Looks at the workers of one host, from the first call of `observe` on. `least_s`: who does not move has not for
    so long, at least."""

    def __init__(self, least_s: float = STILL_S) -> None:
        self._least_s = least_s
        self._watched: dict[str, _Watched] = {}

    def observe(self, now_s: float, sights: Mapping[str, Sight], pace: Pace) -> dict[str, Still]:
        """Those who do not move and have not lately. That somebody comes or ends is a move of all. `pace`: how long
        steps take."""
        if sights.keys() != self._watched.keys():
            self._watched = {key: _Watched(one, now_s, now_s, one) for key, one in sights.items()}
            return {}
        still = {}
        for key, sight in sights.items():
            seconds = self._look(self._watched[key], sight, now_s, pace)
            if seconds > max(self._least_s, _PACE * pace.usual_s):
                reading = sight.reading
                still[key] = Still(seconds, reading.waiting, reading.step, reading.phase)
        return still

    def _look(self, one: _Watched, now: Sight, now_s: float, pace: Pace) -> float:
        """For how long it has not moved."""
        before, reading = one.last.reading, now.reading
        one.last = now
        if _gets_on(one.moved.reading, before, now):
            one.moved, one.moved_s, one.got_on_s = now, now_s, now_s
            return 0.0
        if reading.waiting or before.waiting:
            one.got_on_s = now_s  # should it compute from here on, it has just begun
        seen_s = now_s - one.moved_s
        computed_s = now.computed_s - one.moved.computed_s
        if not reading.waiting and seen_s >= _LOOKED_S and computed_s >= _COMPUTES * seen_s:
            one.moved, one.moved_s = now, now_s
        busy_s = now_s - one.got_on_s
        return busy_s if busy_s > _busy_limit_s(reading, pace) else now_s - one.moved_s


def stuck(members: Collection[str], still: Mapping[str, Still]) -> dict[str, Still] | None:
    """None as long as one of `members` moves; else those of them who do not get on and wait for nobody: none of them
    where all wait for one another."""
    if not members or any(key not in still for key in members):
        return None
    return {key: still[key] for key in members if not still[key].waiting}


def unusual_s(pace: Pace) -> float:
    """For how long no step that comes to an end goes without getting on, as far as its processor and its network are as
    they were."""
    return max(BUSY_S, _BUSY_PACE * pace.usual_s, pace.longest_s)


def _gets_on(then: Reading, before: Reading, now: Sight) -> bool:
    """Whether it is elsewhere than `then`, does what has an end of its own, or has done something since `before`."""
    reading = now.reading
    if reading.phase in _NOT_STEPS or _place(reading) != _place(then):
        return True
    if reading.waiting:
        return False
    return now.in_kernel or (reading.ticks != before.ticks and not before.waiting)


def _busy_limit_s(reading: Reading, pace: Pace) -> float:
    """For how long a worker may compute without getting on: without end where nobody knows how long that takes."""
    if reading.waiting or reading.phase not in _ROUTINE or reading.steps_done == 0:
        return math.inf
    return unusual_s(pace)


def _place(reading: Reading) -> tuple[int, str, int, int]:
    return reading.step, reading.phase, reading.steps_done, reading.view
