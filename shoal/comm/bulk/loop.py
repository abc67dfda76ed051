"""One thread that waits for many sockets, and does what it is asked to."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

READ, WRITE = select.EPOLLIN, select.EPOLLOUT

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT_S = 1.0


class Timer:
    """Something that is to be done later."""

    __slots__ = ("cancelled", "due_s", "function")

    def __init__(self, due_s: float, function: Callable[[], None]) -> None:
        self.due_s, self.function = due_s, function
        self.cancelled = False

    def cancel(self) -> None:
        """It will not be done, unless it is being done. From any thread."""
        self.cancelled = True


class Loop:
    """`run` serves until `stop`. `call`, `later` and `stop` may be called from any thread, `stop` and `call` also from
    signal handlers; everything else only in the thread that runs, or before it does.

    What is called must not wait. An exception that escapes is logged, and the loop goes on.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, READ)
        self._ready: dict[int, Callable[[int], None]] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stopping = False
        self._closed = False

    def watch(self, descriptor: int, events: int, ready: Callable[[int], None]) -> None:
        """Have `ready(events)` called while the descriptor is readable, or writable, as `events` says."""
        self._epoll.register(descriptor, events)
        self._ready[descriptor] = ready

    def change(self, descriptor: int, events: int) -> None:
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """To be called before the descriptor is closed."""
        if self._ready.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def call(self, function: Callable[[], None]) -> None:
        """Have `function` called in the loop's thread, soon."""
        self._calls.append(function)
        with contextlib.suppress(OSError, ValueError):  # closed: nobody calls anything any more
            os.eventfd_write(self._wake, 1)

    def later(self, seconds: float, function: Callable[[], None]) -> Timer:
        """Have `function` called in the loop's thread after `seconds`."""
        timer = Timer(time.monotonic() + seconds, function)
        with self._lock:
            heapq.heappush(self._timers, (timer.due_s, next(self._numbers), timer))
            first = self._timers[0][2] is timer
        if first:
            self.call(lambda: None)
        return timer

    def stop(self) -> None:
        self._stopping = True
        self.call(lambda: None)

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopping:
            for descriptor, events in self._epoll.poll(self._patience_s()):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                elif (ready := self._ready.get(descriptor)) is not None:
                    self._do(ready, events)
            for _ in range(len(self._calls)):
                self._do(self._calls.popleft())
            self._do_timers()

    def close(self) -> None:
        """After `run` has returned. Descriptors that are watched are not closed."""
        if not self._closed:
            self._closed = True
            self._epoll.close()
            os.close(self._wake)
            self._wake = -1
            self._ready.clear()
            self._calls.clear()
            self._timers.clear()

    def _patience_s(self) -> float:
        if self._calls:
            return 0.0
        with self._lock:
            due_s = self._timers[0][0] if self._timers else float("inf")
        return min(max(0.0, due_s - time.monotonic()), _LONGEST_WAIT_S)

    def _do_timers(self) -> None:
        now_s = time.monotonic()
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > now_s:
                    return
                timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                self._do(timer.function)

    @staticmethod
    def _do(function: Callable[..., None], *arguments: int) -> None:
        try:
            function(*arguments)
        except Exception:
            _LOG.exception("an error in the loop of a server")
