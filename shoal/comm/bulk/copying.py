"""Copies of large arrays, by several threads at once: one core alone cannot use all of the memory's speed.

The thread that wants a copy makes it, piece by piece; helpers take pieces off it as soon as they run. So on a busy
machine, where they do not, it is no slower than alone.
"""

from __future__ import annotations

import os
import queue
import threading

from shoal.comm.bulk.message import Array, Bytes, flat_bytes

_LARGE_BYTES = 4 << 20
_PIECES = 16  # so that threads end at about the same time
_PIECE_BYTES = (1 << 20, 4 << 20)  # no less, and no more
_MOST_THREADS = 4


class _Work:
    """One copy under way."""

    def __init__(self, destination: Bytes, source: Bytes) -> None:
        self._destination, self._source = destination, source
        self._piece = min(max(len(source) // _PIECES, _PIECE_BYTES[0]), _PIECE_BYTES[1])
        self._lock = threading.Lock()
        self._next = 0
        self._busy = 0
        self._idle = threading.Condition(self._lock)

    def do(self) -> None:
        """Copy pieces as long as there are any."""
        while True:
            with self._lock:
                start = self._next
                if start >= len(self._source):
                    return
                stop = self._next = start + self._piece
                self._busy += 1
            self._destination[start:stop] = self._source[start:stop]
            with self._lock:
                self._busy -= 1
                if self._busy == 0:
                    self._idle.notify()

    def wait(self) -> None:
        """Until all pieces that were begun are copied."""
        with self._lock:
            while self._busy:
                self._idle.wait()


class _Helpers:
    """Threads that help. They start with the first large array, and end with the process."""

    def __init__(self) -> None:
        self.count = min(_MOST_THREADS, len(os.sched_getaffinity(0))) - 1
        self._wanted: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        for number in range(self.count):
            threading.Thread(target=self._help, name=f"bulk-copy-{number}", daemon=True).start()

    def call(self, work: _Work) -> None:
        for _ in range(self.count):
            self._wanted.put(work)

    def _help(self) -> None:
        while True:
            work = self._wanted.get()
            work.do()
            del work  # or its arrays would live until the next one


_helpers: _Helpers | None = None
_making = threading.Lock()


def _forget() -> None:
    """Threads do not survive a fork."""
    global _helpers, _making
    _helpers, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def copy(destination: Array, source: Array) -> None:
    """`destination[...] = source`, for contiguous arrays of the same type and shape that do not overlap."""
    global _helpers  # noqa: PLW0603 - one pool of helpers a process
    if source.nbytes < _LARGE_BYTES:
        destination[...] = source
        return
    with _making:
        if _helpers is None:
            _helpers = _Helpers()
    work = _Work(flat_bytes(destination), flat_bytes(source))
    _helpers.call(work)
    work.do()
    work.wait()
