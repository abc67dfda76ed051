"""Taking the stacks of processes that do not get on, without waiting for it."""

from __future__ import annotations

import contextlib
import os
import queue
import threading

from shoal.launch.stacks import take_stack


class Examination:
    """Stacks are taken one after another in a thread that lives as long as there are any to be taken. `fileno` becomes
    readable when one is there. Use it from one thread."""

    def __init__(self) -> None:
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._asked: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        return self._news

    def begin(self, number: int, pid: int) -> None:
        """Take the stack of process `pid`; it is known by `number` from then on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="shoal-stacks", daemon=True)
            self._thread.start()
        self._asked.put((number, pid))

    def results(self) -> list[tuple[int, str]]:
        """The stacks that have been taken since the last call, empty ones for those that could not be."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._news)
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._taken.get_nowait())
        return found

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            number, pid = asked
            stack = ""
            with contextlib.suppress(Exception):  # a stack is good to have; the process is ended without it, too
                stack = take_stack(pid) or ""
            self._taken.put((number, stack))
            os.eventfd_write(self._news, 1)

    def close(self) -> None:
        """Returns when the last stack has been taken."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
        os.close(self._news)
