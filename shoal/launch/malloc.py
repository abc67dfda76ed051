"""How malloc of our processes keeps memory.

Gradients and activations are freed and wanted again at every step. By default glibc maps each large one anew, and the
kernel clears every page of it again, which can take as long as computing it. If malloc keeps all that is freed, nothing
is cleared, but large blocks stop fitting into what is left of each other (GPT-2: a tenth of all memory). So what is
small is always kept, and what is large only where a process finds that clearing it takes a good part of its time.

Loader processes, which a worker forks, keep everything: batches are of one size. Where the kernel gives huge pages
without being asked, clearing is cheap, and counted as cheaper than it is: there large blocks are mapped.

Only glibc on Linux has these knobs; elsewhere this does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_TOP_PAD = -2
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
_TOP_PAD_BYTES = 16 << 20
LARGE_BYTES = 32 << 20  # the largest threshold that glibc takes

LEAST_S, MOST_S = 2.0, 60.0  # of computing, that a judgement is made on
DEAR = 0.2  # of the time, spent on clearing pages again
_FAULT_S = 4e-6  # a page costs no more than that: other time in the kernel is not for memory
_RESIDENT = Path("/proc/self/statm")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Spent:
    """What a process has spent so far, or within a window: seconds, and pages that were cleared for it; and how many
    pages it has, or has more."""

    user_s: float
    kernel_s: float
    cleared: int
    resident: int

    def since(self, before: Spent) -> Spent:
        return Spent(
            self.user_s - before.user_s,
            self.kernel_s - before.kernel_s,
            self.cleared - before.cleared,
            self.resident - before.resident,
        )

    @property
    def computing_s(self) -> float:
        return self.user_s + self.kernel_s


def is_dear(spent: Spent) -> bool:
    """Whether clearing pages that the process had given back took a good part of what was spent. Pure."""
    if spent.cleared <= 0:
        return False
    again = 1.0 - max(0, spent.resident) / spent.cleared  # the others came to stay
    return again * min(spent.kernel_s, spent.cleared * _FAULT_S) > DEAR * spent.computing_s


def keep_memory() -> None:
    """Have malloc of this process keep what is freed, and look after that from now on."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is None or not _RESIDENT.exists():
        return
    mallopt(_TRIM_THRESHOLD, -1)
    mallopt(_TOP_PAD, _TOP_PAD_BYTES)
    mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
    os.register_at_fork(after_in_child=lambda: mallopt(_MMAP_MAX, 0))  # nobody looks there: threads are not forked
    threading.Thread(target=look_after, args=(lambda: mallopt(_MMAP_MAX, 0),), name="memory", daemon=True).start()


def look_after(keep_all: Callable[[], object], look_s: float = 0.5) -> None:
    """Look again and again at what clearing pages costs, and call `keep_all` when it is dear. Where one cannot look
    (there is no descriptor left) it stays as it is."""
    rest = threading.Event()
    with contextlib.suppress(OSError):
        before = spent_so_far()
        while True:
            rest.wait(look_s)
            now = spent_so_far()
            spent = now.since(before)
            if spent.computing_s >= LEAST_S and is_dear(spent):
                keep_all()
                return
            if spent.computing_s >= MOST_S:
                before = now


def spent_so_far() -> Spent:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Spent(used.ru_utime, used.ru_stime, used.ru_minflt, int(_RESIDENT.read_text().split()[1]))
