"""Memory that is used again: fresh pages cost more than filling them, and messages come in the same sizes.

A pool lends memory as an array and knows, without being told, when the last view of it is gone.
"""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from shoal.comm.bulk.message import Bytes

MOST_IDLE_BYTES = 256 << 20  # that a pool keeps for the next message
IDLE_S = 5.0  # and for how long
_SMALLEST_BYTES = 64 << 10


def size_class(nbytes: int) -> int:
    """The size that is taken where `nbytes` are needed: at most an eighth more, in whole pages."""
    if nbytes <= _SMALLEST_BYTES:
        return _SMALLEST_BYTES
    step = max(1 << ((nbytes - 1).bit_length() - 4), mmap.PAGESIZE)
    return -(-nbytes // step) * step


class Lease(weakref.ref["Bytes"]):
    """Tells, in whatever thread, that an array and all views of it are gone."""

    __slots__ = ("on_gone",)
    on_gone: Callable[[], None]


_leases: dict[int, Lease] = {}  # by identity: a reference must live longer than what it refers to


def _end(lease: weakref.ref[Bytes]) -> None:
    assert isinstance(lease, Lease)
    del _leases[id(lease)]
    lease.on_gone()


def lent(whole: Bytes, on_gone: Callable[[], None]) -> Bytes:
    """Have `on_gone` called when `whole` and all views of it are gone: in whatever thread and in the middle of whatever
    it does, so that it must not wait. `whole` is an array whose memory is not its own: views of it, and of them, have
    it as their base."""
    lease = Lease(whole, _end)
    lease.on_gone = on_gone
    _leases[id(lease)] = lease
    return whole


class Chunk:
    """A piece of memory of a pool. It is lent as long as `users` is not 0."""

    __slots__ = ("idle_since_s", "nbytes", "users")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.users = 0
        self.idle_since_s = 0.0

    def whole(self) -> Bytes:
        """A new array over all of it."""
        raise NotImplementedError


class Private(Chunk):
    """Memory of this process alone."""

    __slots__ = ("_map",)

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self._map = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def whole(self) -> Bytes:
        return np.frombuffer(self._map, np.uint8)


C = TypeVar("C", bound=Chunk)


class Pool(Generic[C]):
    """Chunks by size. `make(nbytes)` makes one, `unmake(chunk)` is told of those that are given back to the system.

    May be used from any thread.
    """

    def __init__(self, make: Callable[[int], C], unmake: Callable[[C], None] = lambda chunk: None) -> None:
        self._make, self._unmake = make, unmake
        self._idle: dict[int, list[C]] = {}
        self._idle_bytes = 0
        self._lock = threading.Lock()
        self._returned: deque[C] = deque()
        self._closed = False

    @property
    def idle_bytes(self) -> int:
        self._sort()
        return self._idle_bytes

    def take(self, nbytes: int) -> C:
        """A chunk of at least `nbytes`, with one user."""
        size = size_class(nbytes)
        self._sort()
        with self._lock:
            idle = self._idle.get(size)
            chunk = idle.pop() if idle else None
            if chunk is not None:
                self._idle_bytes -= chunk.nbytes
        if chunk is None:
            chunk = self._make(size)
        chunk.users = 1
        return chunk

    def use(self, chunk: C) -> None:
        """One more user. Only for those who know that there is at least one."""
        with self._lock:
            chunk.users += 1

    def give_back(self, chunk: C) -> None:
        """One user less. Never waits: it is called by the garbage collector, wherever that happens to run."""
        self._returned.append(chunk)
        self._sort(wait=False)

    def lend(self, nbytes: int) -> Bytes:
        """`nbytes` of memory, which come back by themselves when the last view of them is gone."""
        chunk = self.take(nbytes)
        return lent(chunk.whole(), lambda: self.give_back(chunk))[:nbytes]

    def trim(self, now_s: float) -> None:
        """Give memory that nobody has used for a while back to the system."""
        self._sort()
        with self._lock:
            for size, chunks in list(self._idle.items()):
                old = [chunk for chunk in chunks if now_s - chunk.idle_since_s > IDLE_S]
                if old:
                    self._idle[size] = [chunk for chunk in chunks if now_s - chunk.idle_since_s <= IDLE_S]
                    self._idle_bytes -= sum(chunk.nbytes for chunk in old)
                    for chunk in old:
                        self._unmake(chunk)

    def close(self) -> None:
        """Keep nothing any more. What is lent stays what it is."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            self._idle_bytes = 0
            self._returned.clear()

    def _sort(self, wait: bool = True) -> None:
        """Put what has come back where it belongs."""
        if not self._returned or not self._lock.acquire(blocking=wait):
            return  # whoever holds the lock, or takes the next chunk, will see to it
        try:
            while self._returned:
                chunk = self._returned.popleft()
                chunk.users -= 1
                if chunk.users > 0:
                    continue
                if self._closed or self._idle_bytes + chunk.nbytes > MOST_IDLE_BYTES:
                    self._unmake(chunk)
                    continue
                chunk.idle_since_s = time.monotonic()
                self._idle.setdefault(chunk.nbytes, []).append(chunk)
                self._idle_bytes += chunk.nbytes
        finally:
            self._lock.release()


def private_pool() -> Pool[Private]:
    return Pool(Private)
