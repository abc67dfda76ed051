"""Writing a large state to disk while it goes on changing: by a child process, which has it as it was at the fork.

The kernel copies a page only when one of the two writes to it, so that a fork takes milliseconds and memory only for
what changes meanwhile. The child does nothing but write files: it never touches sockets or threads, and it ends with
its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable

_SET_PARENT_DEATH_SIGNAL = 1


class Forked:
    """A child that carries out `function` on memory as it is now. Fork from the thread that lives longest."""

    def __init__(self, function: Callable[[], None]) -> None:
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                die_with_parent(parent)
                function()
                status = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(status)

    def poll(self) -> bool | None:
        """Whether it has done it; None: not yet."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return None if pid == 0 else status == 0

    def kill(self) -> None:
        """End it, whatever it is at."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, however that ends."""
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None:
        prctl(_SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:  # it was gone before the kernel was told
        os._exit(1)
