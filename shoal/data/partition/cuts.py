"""Where a sorted line of rows is cut, so that the parts are equal and keys stay whole where they can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from shoal.data.partition.sample import Merged, Positions


class Side(StrEnum):
    """Of a value: before all its rows, among them, after all of them."""

    BEFORE = "before"
    AMONG = "among"
    AFTER = "after"


@dataclass(frozen=True)
class Cut:
    """A place in the line, by its value. Among the rows of a value, `rank` says how many rows of the whole line are to
    lie before the cut."""

    value: Any
    side: Side
    rank: int = 0


@dataclass(frozen=True)
class Placed:
    """A cut with its exact place: rows of its value that lie before it (`of_value`, of `value_rows`), and the position
    in each run."""

    cut: Cut
    of_value: int
    value_rows: int
    positions: tuple[int, ...]

    @property
    def rank(self) -> int:
        """How many rows of the whole line lie before it."""
        return sum(self.positions)


def cut_at(merged: Merged, targets: Iterable[float], slack: float) -> list[Cut]:
    """Cuts near ranks `targets` (rising): at the border of a value if there is one within `slack` rows, otherwise among
    the rows of the heavy value that lies there."""
    cuts = []
    for target in targets:
        number = int(np.searchsorted(merged.through, target))
        if number >= len(merged.values):
            cuts.append(Cut(merged.values[-1], Side.AFTER))
            continue
        rank, border = min(_borders(merged, number), key=lambda found: abs(found[0] - target))
        inside = merged.before[number] < target < merged.through[number]
        if abs(rank - target) <= slack or not inside:
            cuts.append(border)
        else:
            cuts.append(Cut(merged.values[number], Side.AMONG, round(target)))
    return cuts


def cut_between_values(merged: Merged, parts: int) -> list[Cut]:
    """``parts - 1`` cuts that leave every value whole. After a heavy one the rest is divided evenly anew, and where
    there are fewer values than parts, the last parts are empty."""
    cuts: list[Cut] = []
    done = 0.0
    for part in range(parts - 1):
        target = done + (merged.rows - done) / (parts - part)
        number = min(int(np.searchsorted(merged.through, target)), max(0, len(merged.values) - 1))
        later = [
            found
            for near in (number, min(number + 1, len(merged.values) - 1))
            for found in _borders(merged, near)
            if found[0] > done
        ]
        rank, border = min(later, key=lambda found: abs(found[0] - target), default=(float(merged.rows), None))
        cuts.append(border or Cut(merged.values[-1], Side.AFTER))
        done = rank
    return cuts


def _borders(merged: Merged, number: int) -> list[tuple[float, Cut]]:
    """The nearest places that are known to lie between two values, with about their ranks."""
    value = merged.values[number]
    found = [
        (float(merged.before[number]), Cut(value, Side.BEFORE)),
        (float(merged.through[number]), Cut(value, Side.AFTER)),
    ]
    if number:
        found.append((float(merged.through[number - 1]), Cut(merged.values[number - 1], Side.AFTER)))
    return found


def place(cut: Cut, spans: Sequence[tuple[int, int]]) -> Placed:
    """Where `cut` is, when its value has these positions ``[start, stop)`` in the runs. Rows of one value lie in the
    order of the runs."""
    lower, upper = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    counts = upper - lower
    rows = int(counts.sum())
    wanted = {Side.BEFORE: 0, Side.AFTER: rows}.get(cut.side, max(0, min(rows, cut.rank - int(lower.sum()))))
    taken: Positions = np.clip(wanted - (np.cumsum(counts) - counts), 0, counts)
    return Placed(cut, wanted, rows, tuple((lower + taken).tolist()))


def in_order(placed: Iterable[Placed]) -> list[Placed]:
    """Sorted along the line."""
    return sorted(placed, key=lambda cut: cut.rank)
