"""Whether the kernel has ended processes because memory ran out."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_RECORD_BYTES = 8192
_KILLED = re.compile(rb"Killed process (\d+)")
_MEMORY_S = 5.0  # an end and the news of it lie no further apart


class OutOfMemory:
    """Counts such ends on this machine, those within control groups included. What cannot be read counts as none."""

    def __init__(self, now_s: float, counters: Path = Path("/proc/vmstat"), log: Path = Path("/dev/kmsg")) -> None:
        self._counters, self._log = counters, log
        self._before = self._seen = self._count()
        self._looked_s = now_s

    def _count(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            for line in self._counters.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        return 0

    def look(self, now_s: float) -> None:
        """To be called now and then, so that what happened long ago is not taken for the cause of what happens now."""
        if now_s - self._looked_s > _MEMORY_S:
            self._before, self._seen, self._looked_s = self._seen, self._count(), now_s

    def killed(self, pid: int) -> bool:
        """Whether that ended process `pid` in the last seconds. Where this user may not read the kernel's log, which
        names processes, any such end on this machine is taken for it."""
        if self._count() <= self._before:
            return False
        named = self._named()
        return pid in named if named else True

    def _named(self) -> set[int]:
        """The processes that the kernel's log says were ended."""
        found: set[int] = set()
        with contextlib.suppress(OSError):
            fd = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK)
            try:
                while record := os.read(fd, _RECORD_BYTES):  # one record each, then EAGAIN
                    found.update(int(pid) for pid in _KILLED.findall(record))
            finally:
                os.close(fd)
        return found
