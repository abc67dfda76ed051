"""Anonymous shared memory behind the control page's descriptor, cut up in the same way by every rank.

The memfd of a run is one sparse file. Each view owns a window of it, each of its groups a slice of the window, far
from all others, and a group takes ranges from its slice one after the other; as every member takes the same ranges in
the same order, none has to tell another where a range lies. Memory that was never written reads as zero, so the words
of a new range need no initialisation. Nothing has a name: when the last process of the run is gone, however it went, so
is the memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys

from shoal.core.errors import ShoalError

# of the sparse file, not of memory: half a million views, each with its own group and up to 255 parts
WINDOW_BYTES = 1 << 44  # the control page lies in the first window
SLICE_BYTES = 1 << 36
_PARTS = WINDOW_BYTES // SLICE_BYTES
_FALLOC_KEEP_SIZE, _FALLOC_PUNCH_HOLE = 1, 2  # from linux/falloc.h
LINE_BYTES = 64  # a cache line: words with different writers stand on different lines


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def unsupported() -> str | None:
    """Why shared memory cannot be used on this machine, or None."""
    machine = platform.machine()
    if not sys.platform.startswith("linux") or machine not in ("x86_64", "AMD64"):
        # flags are plain stores after plain stores: only the total store order of x86-64 keeps them in order
        return f"it needs Linux on x86-64, and this is {sys.platform} on {machine}"
    return None


def give_back_older(fd: int, number: int) -> None:
    """Give back the memory of all groups of views before `number`: nobody computes in them any more.

    Who still holds a tensor of one reads zeros. A broken group cannot do it itself: its members cannot agree that all
    have left, and one that was killed left its part behind.
    """
    start, end = WINDOW_BYTES, (1 + number) * WINDOW_BYTES
    if os.fstat(fd).st_size <= start:
        return  # no group ever had memory here
    libc = ctypes.CDLL(None, use_errno=True)
    mode = _FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE
    if libc.fallocate(fd, mode, ctypes.c_int64(start), ctypes.c_int64(end - start)) != 0:
        error = ctypes.get_errno()
        raise ShoalError(f"cannot give back the shared memory of earlier views: {os.strerror(error)}")


class SharedRange(mmap.mmap):
    """A mapped range. Unmapped when the last tensor over it is gone, never before: `close` is not for
    callers, as torch keeps a pointer without telling the map.

    `own` is the part that only this rank's data lies in. If `settled`, nobody else reads or writes it any
    more, and its memory goes back to the system together with the map.
    """

    own: tuple[int, int] = (0, 0)
    settled: bool = False

    def __del__(self) -> None:
        if self.settled and self.own[1] > 0:
            self.madvise(mmap.MADV_REMOVE, *self.own)


class Window:
    """Hands out the ranges of a group: that of view `number`, or of its part `part`. Every member must ask for the same
    sizes in the same order."""

    def __init__(self, fd: int, number: int, part: int = 0) -> None:
        if not 0 <= part < _PARTS:
            raise ShoalError(f"part {part} of view {number} has no place in shared memory: {_PARTS - 1} are possible")
        self._fd = fd
        self._next = (1 + number) * WINDOW_BYTES + part * SLICE_BYTES
        self._end = self._next + SLICE_BYTES

    def take(self, size_bytes: int, own: tuple[int, int] = (0, 0)) -> SharedRange:
        """Map the next `size_bytes`. `own` (start, length; whole pages) is allocated now, by its owner, so
        that a lack of memory is an error here and not a signal later."""
        size_bytes = max(round_up(size_bytes, mmap.PAGESIZE), mmap.PAGESIZE)
        start = self._next
        self._next += size_bytes
        try:
            if self._next > self._end:
                raise OSError("the group has taken all that it may")
            # allocating the last page grows the file and can never shrink it, unlike ftruncate, which would
            # cut off what a faster rank has taken in the meantime
            os.posix_fallocate(self._fd, self._next - mmap.PAGESIZE, mmap.PAGESIZE)
            if own[1] > 0:
                os.posix_fallocate(self._fd, start + own[0], own[1])
            taken = SharedRange(self._fd, size_bytes, mmap.MAP_SHARED, offset=start)
        except OSError as error:
            raise ShoalError(f"cannot get {size_bytes / 2**20:.1f} MiB of shared memory: {error}") from error
        taken.own = own
        return taken
