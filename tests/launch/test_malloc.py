"""What malloc of a worker keeps, and what it gives back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.launch.malloc import TUNABLES, with_huge_pages

pytestmark = pytest.mark.unit

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_HELD = """
import resource, sys
import torch
from shoal.launch.malloc import keep_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

keep_memory()
torch.ones(1000)  # the libraries have loaded what they need
before = resident()
block = torch.ones(int(sys.argv[1]) << 18)
full = resident() - before
assert full > 0.9 * int(sys.argv[1]), full
del block
print((resident() - before) / full)
"""


def _kept(mebibytes: int, tunables: str) -> float:
    """Which part of a block of this size a process keeps when it is freed."""
    done = subprocess.run(
        [sys.executable, "-c", _HELD, str(mebibytes)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, TUNABLES: tunables},
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_huge_pages_are_asked_for_unless_the_user_has_spoken() -> None:
    assert with_huge_pages({"HOME": "/h"}) == {"HOME": "/h", TUNABLES: "glibc.malloc.hugetlb=1"}
    other = with_huge_pages({TUNABLES: "glibc.malloc.check=3"})
    assert other[TUNABLES] == "glibc.malloc.check=3:glibc.malloc.hugetlb=1"
    assert with_huge_pages({TUNABLES: "glibc.malloc.hugetlb=0"})[TUNABLES] == "glibc.malloc.hugetlb=0"


@pytest.mark.skipif(sys.platform != "linux", reason="malloc of Linux")
def test_without_huge_pages_everything_is_kept() -> None:
    if _ENABLED.exists() and "[always]" in _ENABLED.read_text():
        pytest.skip("this kernel uses huge pages always")
    assert _kept(24, "glibc.malloc.hugetlb=0") > 0.9
    assert _kept(64, "glibc.malloc.hugetlb=0") > 0.9


@pytest.mark.skipif(sys.platform != "linux", reason="malloc of Linux")
def test_with_huge_pages_what_is_large_goes_back() -> None:
    if not _ENABLED.exists() or "[never]" in _ENABLED.read_text():
        pytest.skip("this kernel uses no huge pages")
    assert _kept(24, with_huge_pages({})[TUNABLES]) > 0.9
    assert _kept(64, with_huge_pages({})[TUNABLES]) < 0.1
