"""How a model got better, against time and against bytes. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Point:
    """The model after `step` steps: `seconds` and `sent_bytes` are since the first of them began."""

    step: int
    seconds: float
    sent_bytes: float  # by a host, on average
    loss: float


@dataclass(frozen=True)
class Curve:
    """What became of one run, in the order of time."""

    points: tuple[Point, ...]

    def to_json(self) -> list[list[float]]:
        return [[one.step, one.seconds, one.sent_bytes, one.loss] for one in self.points]

    @staticmethod
    def from_json(rows: Sequence[Sequence[Any]]) -> Curve:
        return Curve(tuple(Point(int(step), float(s), float(sent), float(loss)) for step, s, sent, loss in rows))

    def reached(self, loss: float) -> Point | None:
        """The first point at which the model was that good: nothing is guessed between points. None: it never was."""
        return next((one for one in self.points if one.loss <= loss), None)

    def step_s(self) -> float | None:
        """The usual seconds of a step, None where there are fewer than two points."""
        times = [(b.seconds - a.seconds) / (b.step - a.step) for a, b in pairwise(self.points) if b.step > a.step]
        return median(times) if times else None


def ratios(rounds: Sequence[dict[str, Curve]], name: str, base: str, loss: float) -> list[float]:
    """How many times sooner than `base` `name` was there, by round. A round in which one was not is left out."""
    found = []
    for one in rounds:
        mine = one[name].reached(loss) if name in one else None
        theirs = one[base].reached(loss) if base in one else None
        if mine is not None and theirs is not None:
            found.append(theirs.seconds / mine.seconds)
    return found
