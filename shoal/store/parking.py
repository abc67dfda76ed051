"""Requests that cannot be answered yet: each waits for somebody, up to its own deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.store.state import Command, State


@dataclass(frozen=True)
class Parked:
    """A command that waits. `proceed` carries it out, whatever comes of it; `refuse` answers that it is not done."""

    command: Command
    until_s: float
    proceed: Callable[[], None]
    refuse: Callable[[Exception], None]


class Parking:
    """In order of arrival. For one thread."""

    def __init__(self) -> None:
        self._parked: list[Parked] = []

    def __len__(self) -> int:
        return len(self._parked)

    def add(self, parked: Parked) -> None:
        self._parked.append(parked)

    def next_deadline_s(self) -> float | None:
        """When somebody's patience ends."""
        return min((one.until_s for one in self._parked), default=None)

    def look(self, state: State, now_s: float) -> None:
        """Carry out what need not wait any longer, one after the other: each may let the next one go, or stop it."""
        while True:
            ready = next((one for one in self._parked if not state.awaited(one.command) or one.until_s <= now_s), None)
            if ready is None:
                return
            self._parked.remove(ready)
            ready.proceed()

    def clear(self, error: Exception) -> None:
        """Nothing of this will be done here."""
        parked, self._parked = self._parked, []
        for one in parked:
            one.refuse(error)
