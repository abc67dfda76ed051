"""What the kernel is told about one of our processes: with whom it dies, what it is called, who may look at it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1
_SET_NAME = 15
_SET_CHILD_SUBREAPER = 36
_SET_PTRACER = 0x59616D61
_ANYONE = (1 << 64) - 1

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends.

    The kernel watches the *thread* that forked, so a parent must fork from a thread that lives as long as
    its child should. A parent that was gone before the kernel was told sends nothing: hence the second
    look.
    """
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose own parent ends, so that they can be waited for."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def allow_stacks() -> None:
    """Let any process of this user take this one's stack: its parent is not who looks at it. Where the kernel does not
    restrict that, nothing is to be done."""
    _libc.prctl(_SET_PTRACER, ctypes.c_ulong(_ANYONE), 0, 0, 0)


def name_process(name: str) -> None:
    """Show `name` (15 characters at most) in ``ps`` and ``top``."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _libc.prctl(_SET_NAME, buffer, 0, 0, 0)


def step_back(niceness: int) -> None:
    """Let other processes go first. Where the kernel shares the processor out among sessions, this one's steps back."""
    os.nice(niceness)
    with contextlib.suppress(OSError), Path("/proc/self/autogroup").open("w") as group:
        group.write(str(niceness))
