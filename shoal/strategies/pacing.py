"""How many local steps lie between two averages. Pure: a function of what all trainers were told, so all of them agree.

More local steps cost less communication and let the trainers drift further apart. Where the number is left to Shoal, it
is the smallest for which sending takes no more than a stated part of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.1  # of the time, that sending may take
_FIRST = 2  # steps of the first rounds, in which everything is measured
MOST = 512
_CHANGE = 4.0  # a round may be that much longer or shorter than the last one


@dataclass(frozen=True)
class Pace:
    """`steps` in the next round; `sending` is the part of the time that sending took in the last one, None before."""

    steps: int
    sending: float | None = None

    def to_json(self) -> list[float | None]:
        return [self.steps, self.sending]


def first_pace(h: int | str) -> Pace:
    if isinstance(h, int):
        return Pace(h)
    return Pace(1 if h == "growing" else _FIRST)


def next_pace(h: int | str, last: Pace, steps: int, computing_s: float, sending_s: float) -> Pace:
    """The pace after a round of `steps`, in which the slowest trainer computed for `computing_s` and the average took
    `sending_s`. A round that was cut short (the end of an epoch) says as much as any other."""
    total = computing_s + sending_s
    sending = sending_s / total if total > 0 else 0.0
    if isinstance(h, int):
        return Pace(h, sending)
    if h == "growing":
        return Pace(min(2 * last.steps, MOST), sending)
    if computing_s <= 0 or steps <= 0:
        return Pace(last.steps, sending)
    wanted = sending_s * (1 - SHARE) / SHARE / (computing_s / steps)
    bounded = min(max(wanted, last.steps / _CHANGE), last.steps * _CHANGE)
    return Pace(min(max(math.ceil(bounded), 1), MOST), sending)
