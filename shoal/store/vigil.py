"""For how long a process of a fleet has shown no sign of life.

A sign is an answer to the keeper, or what is seen of the process from outside: that it computes, or waits for the
kernel, as who reads a slow disk or has been swapped out. So whoever is merely slow gives one.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.core.vitals import Pulse, Vitals, look_at, stopped

_LOOK_S = 0.2  # between two looks
_LONGEST_GAP_S = 1.0  # of more between two looks, it was the keeper that stood still


class Vigil:
    """Over one process, from its start. Not a clock of its own: every call says what time it is."""

    def __init__(self, now_s: float, look: Callable[[int], Vitals | None] = look_at) -> None:
        self._pulse, self._look = Pulse(now_s), look
        self._looked_s, self._still_s = now_s, 0.0

    def silent_s(self, pid: int, unheard_s: float, now_s: float) -> float:
        """Look at process `pid`, which has not answered for `unheard_s`; returns for how long nothing shows that it
        lives. 0: nobody knows the process yet."""
        gap_s = now_s - self._looked_s
        if pid and gap_s >= _LOOK_S:
            self._looked_s = now_s
            alive = self._pulse.feel(self._look(pid), now_s)
            self._still_s = 0.0 if alive else self._still_s + min(gap_s, _LONGEST_GAP_S)
        return min(self._still_s, unheard_s)

    @property
    def stopped(self) -> str:
        """Who has stopped it, in words; empty where nobody has."""
        return stopped(self._pulse.state)
