"""A parcel: bytes for a child process, in an anonymous file that is handed over by descriptor.

Nobody else can read or change it, and nothing is left behind.
"""

from __future__ import annotations

import os


def pack(data: bytes) -> int:
    """Put `data` into an anonymous file and return its descriptor, which the caller closes."""
    fd = os.memfd_create("shoal-parcel", os.MFD_CLOEXEC)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BaseException:
        os.close(fd)
        raise
    return fd


def unpack(fd: int) -> bytes:
    """The bytes behind `fd`, which is closed. Several processes may share its position, so that is left
    alone."""
    try:
        size = os.fstat(fd).st_size
        data = bytearray()
        while len(data) < size:
            data += os.pread(fd, size - len(data), len(data))
        return bytes(data)
    finally:
        os.close(fd)
