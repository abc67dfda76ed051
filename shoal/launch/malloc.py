"""How malloc of our processes keeps memory.

Gradients and activations are freed and wanted again at every step. By default glibc maps each large one anew, and the
kernel clears every page of it again: with pages of 4 KiB that can take as long as computing it. If malloc keeps all
that is freed, nothing is cleared, but large blocks stop fitting into what is left of each other (GPT-2: a tenth of all
memory). So what is large is mapped, in huge pages, which the kernel clears in little time, and what is smaller is kept.
Where there are no huge pages everything is kept.

Only glibc has these knobs, and huge pages have to be asked for before a process begins; elsewhere this does nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from pathlib import Path

_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_TOP_PAD = -2
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
_TOP_PAD_BYTES = 16 << 20
LARGE_BYTES = 32 << 20  # the largest threshold that glibc takes

TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb"  # 1: have the kernel use them where it can, since glibc 2.35
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_libc = ctypes.CDLL(None, use_errno=True)


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, so that malloc of a program that is started with it uses huge pages. What the user has said about
    them holds."""
    stated = [tunable for tunable in environment.get(TUNABLES, "").split(":") if tunable]
    if not any(tunable.startswith(f"{_HUGE_PAGES}=") for tunable in stated):
        stated.append(f"{_HUGE_PAGES}=1")
    return {**environment, TUNABLES: ":".join(stated)}


def keep_memory() -> None:
    """Have malloc keep what is freed instead of giving it back to the kernel."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is None:
        return
    if _has_huge_pages():
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
    else:
        mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
    mallopt(_TOP_PAD, _TOP_PAD_BYTES)


def _has_huge_pages() -> bool:
    """Whether what malloc maps is in huge pages."""
    try:
        enabled = _ENABLED.read_text()
    except OSError:
        return False
    if "[always]" in enabled:
        return True
    name, version = platform.libc_ver()
    known = name == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= (2, 35)
    return known and "[madvise]" in enabled and f"{_HUGE_PAGES}=1" in os.environ.get(TUNABLES, "").split(":")
