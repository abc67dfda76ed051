"""How fast a run goes: what a display shows between steps."""

from __future__ import annotations

from collections import deque


class Pace:
    """Steps and samples a second over the last `window_s` seconds, as far as it was told."""

    def __init__(self, now: float, step: int, samples: int, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._marks = deque([(now, step, samples)])

    def mark(self, now: float, step: int, samples: int) -> None:
        """The run is at `step` now. Call it as often as the display changes, not at each step."""
        self._marks.append((now, step, samples))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window_s:
            self._marks.popleft()

    @property
    def samples_per_s(self) -> float | None:
        return self._rate(2)

    def seconds_left(self, total_steps: int) -> float | None:
        """At this pace, until `total_steps`."""
        steps_per_s = self._rate(1)
        return None if not steps_per_s else max(0, total_steps - self._marks[-1][1]) / steps_per_s

    def _rate(self, column: int) -> float | None:
        first, last = self._marks[0], self._marks[-1]
        elapsed = last[0] - first[0]
        return (last[column] - first[column]) / elapsed if elapsed > 0 else None
