"""What a command must not leave behind: processes, descriptors, temporary files, shared memory."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from shoal.testing.soak.seat import Seat

GRACE_S = 15.0  # what has been killed may take a moment on a busy machine
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is looked at, not used


@dataclass(frozen=True)
class Before:
    """What there was before a command."""

    descriptors: int
    shared: frozenset[str]

    @classmethod
    def look(cls, seat: Seat) -> Before:
        return cls(_descriptors(seat.pid), _shared())


def leftovers(seat: Seat, before: Before) -> list[str]:
    """What is left of a command that has ended, once it has had time to go."""
    until = time.monotonic() + GRACE_S
    while (left := _left(seat, before)) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _left(seat: Seat, before: Before) -> list[str]:
    if not seat.alive:
        # its children are nobody's now: whoever works below our temporary folder, or had it as an environment
        return [f"process {pid}" for pid in _orphans(seat)]
    left = [f"process {one.pid} ({_command(one)})" for one in seat.below()]
    more = _descriptors(seat.pid) - before.descriptors
    if more > 0:
        left.append(f"{more} descriptors of the launcher")
    left += [f"temporary file {entry.name}" for entry in seat.temporary.iterdir()]
    pids = {str(one.pid) for one in seat.below()} | {str(seat.pid), str(seat.reaper)}
    ours = [name for name in _shared() - before.shared if set(re.findall(r"\d+", name)) & pids]
    return left + [f"shared memory {name}" for name in ours]


def _orphans(seat: Seat) -> list[int]:
    mark = f"TMPDIR={seat.temporary}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0") and _lives(int(entry.parent.name)):
                found.append(int(entry.parent.name))
    return found


def _lives(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.name()}, {process.status()}"
    return "gone"


def _descriptors(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def _shared() -> frozenset[str]:
    return frozenset(entry.name for entry in _SHARED_MEMORY.iterdir()) if _SHARED_MEMORY.is_dir() else frozenset()
