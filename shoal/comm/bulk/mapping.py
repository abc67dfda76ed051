"""Shared memory that is mapped without keeping its descriptor, which the standard library's `mmap` does: a process that
holds many arrays would run out of them."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """All of the file behind `descriptor`, which may be closed afterwards. `numpy.asarray` makes arrays over it, which
    keep it; it is unmapped with the last of them. Raises `OSError` if the memory cannot be had."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        # populated at once: that is cheaper than a fault for each page
        address = _libc.mmap(None, nbytes, protection, mmap.MAP_SHARED | mmap.MAP_POPULATE, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address: int = address
        self.nbytes = nbytes
        self._unmap = _libc.munmap  # there still when the interpreter shuts down

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False)}

    def __del__(self) -> None:
        if hasattr(self, "_unmap"):
            self._unmap(self.address, self.nbytes)
