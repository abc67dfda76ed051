"""The control page of a run: a few words of shared memory between a launcher and its workers.

It carries what must be seen at once and without a message: that the run is over (`abort`), that it should stop at the
next step (`stop`), and how far each worker is and what it is doing, for errors that name the culprit. Each word has
one writer, or is only ever set; words are 8 bytes and aligned, so a reader sees a whole value. The page is anonymous
memory (memfd), inherited by descriptor: nothing is left behind however the run ends.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

PHASES = ("start", "data", "forward", "backward", "reduce", "update", "evaluate", "save", "end")
_ABORT, _STOP = 0, 1
_HEADER_WORDS = 8
_WORDS_PER_WORKER = 8
_STEP, _PHASE, _SEQUENCE = 0, 1, 2
PAGE_BYTES = 65536  # room for 1023 workers
MAX_WORKERS = PAGE_BYTES // 8 // _WORDS_PER_WORKER - 1


class ControlPage:
    """Attach to the page behind `fd`, or make a new one. The segment behind `fd` may be grown by others past
    `PAGE_BYTES`; the page itself never moves."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("shoal-run", os.MFD_CLOEXEC)
            os.ftruncate(fd, PAGE_BYTES)
        self.fd = fd
        self._map = mmap.mmap(fd, PAGE_BYTES, mmap.MAP_SHARED)
        self._words = np.frombuffer(self._map, dtype=np.int64)

    def abort(self) -> None:
        """The run is over: every wait ends with `PeerLost`."""
        self._words[_ABORT] = 1

    @property
    def aborted(self) -> bool:
        return bool(self._words[_ABORT])

    def request_stop(self) -> None:
        """Ask all workers to stop at the end of their step."""
        self._words[_STOP] = 1

    def clear_stop(self) -> None:
        """Take the request back: the run that it was for has ended."""
        self._words[_STOP] = 0

    @property
    def stop_requested(self) -> bool:
        return bool(self._words[_STOP])

    def _base(self, rank: int) -> int:
        return _HEADER_WORDS + rank * _WORDS_PER_WORKER

    def enter(self, rank: int, step: int, phase: str) -> None:
        """Worker `rank` says what it does now."""
        base = self._base(rank)
        self._words[base + _STEP] = step
        self._words[base + _PHASE] = PHASES.index(phase)

    def progress(self, rank: int) -> tuple[int, str]:
        """The step and phase that worker `rank` was in last."""
        base = self._base(rank)
        return int(self._words[base + _STEP]), PHASES[int(self._words[base + _PHASE])]

    def arrive(self, rank: int) -> int:
        """Worker `rank` enters its next collective operation; returns the number of it."""
        base = self._base(rank)
        self._words[base + _SEQUENCE] += 1
        return int(self._words[base + _SEQUENCE])

    def arrived(self, rank: int) -> int:
        """The number of the collective operation that worker `rank` entered last."""
        return int(self._words[self._base(rank) + _SEQUENCE])

    def close(self) -> None:
        """Give the page back. May be called twice."""
        if self.fd >= 0:
            self._words = np.zeros(PAGE_BYTES // 8, dtype=np.int64)
            self._map.close()
            os.close(self.fd)
            self.fd = -1
