"""Whether a process lives, as seen from outside: what it does, and whether it has used the processor since."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_NOT_RUNNING = frozenset("TtZXx")  # stopped, held by a debugger, ended
_STOPPED = {"T": "stopped by a signal (SIGSTOP)", "t": "held by a debugger"}


@dataclass(frozen=True)
class Vitals:
    """`state` is the kernel's letter for what a process does, `ticks` the time that it has used the processor."""

    state: str
    ticks: int

    @property
    def computed_s(self) -> float:
        """The same in seconds."""
        return self.ticks / os.sysconf("SC_CLK_TCK")


def look_at(pid: int) -> Vitals | None:
    """The vitals of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Vitals(fields[0], int(fields[11]) + int(fields[12]))


def stopped(state: str) -> str:
    """Who keeps a process in this `state` from running, in words; empty where nobody does."""
    return _STOPPED.get(state, "")


class Pulse:
    """Follows one process. A new one counts as alive at `now_s`."""

    def __init__(self, now_s: float) -> None:
        self.alive_s = now_s  # when it was last seen to live
        self.state = ""
        self._ticks = -1

    def feel(self, vitals: Vitals | None, now_s: float) -> bool:
        """Whether the process has computed since the last look, or waits for the kernel, which it cannot leave off. One
        that merely waits may be well, but that cannot be seen from outside."""
        if vitals is None:
            return False
        self.state = vitals.state
        moved, self._ticks = vitals.ticks > self._ticks, vitals.ticks
        alive = vitals.state not in _NOT_RUNNING and (moved or vitals.state == "D")
        self.alive_s = now_s if alive else self.alive_s
        return alive
