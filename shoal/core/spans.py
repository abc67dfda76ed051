"""Time spent in named spans: the figures behind every statement about overhead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Spans:
    """Seconds by name, added up since the last `take()`. Spans of one thread may nest; each counts its own time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._totals: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - begin)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._totals[name] = self._totals.get(name, 0.0) + seconds

    def recent(self, name: str) -> float:
        """Seconds in span `name` since the last `take()`."""
        return self._seconds.get(name, 0.0)

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call and start anew; totals are kept."""
        taken, self._seconds = self._seconds, {}
        return taken

    @property
    def totals(self) -> dict[str, float]:
        return dict(self._totals)
