"""How long an examination may take in all, whoever does not answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

EXAMINATION_S = 22.0  # with the 5 s for which hosts are waited for by default, and a start and an end: under 30 s


class Deadline:
    """When an examination must be over: `seconds` from now, and as much later as `extend` says."""

    def __init__(self, seconds: float = EXAMINATION_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = clock() + seconds

    def left_s(self, most_s: float = math.inf) -> float:
        """How long may still be waited, for something that should take no longer than `most_s`. Never negative."""
        return max(0.0, min(most_s, self._until_s - self._clock()))

    def part(self, most_s: float) -> Deadline:
        """The deadline of a part that may take `most_s`, and ends with the whole."""
        return Deadline(self.left_s(most_s), self._clock)

    def extend(self, seconds: float) -> None:
        """So much time has passed that does not count."""
        self._until_s += seconds
