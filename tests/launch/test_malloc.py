"""What malloc of a worker keeps, and what it gives back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.launch import malloc
from shoal.launch.malloc import DEAR, Spent, is_dear, look_after

pytestmark = pytest.mark.unit
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere keep_memory does nothing: glibc on Linux only")

_HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_FORKED = """
import os
import torch
from shoal.launch import malloc

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

malloc.keep_memory()
if os.fork() == 0:
    torch.ones(1000)
    before = resident()
    block = torch.ones(64 << 18)
    full = resident() - before
    del block
    print((resident() - before) / full, flush=True)
    os._exit(0)
os.wait()
"""

_TRAINS = """
import threading, time
import torch
from shoal.launch import malloc

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def kept(mebibytes):
    \"\"\"Which part of a block of this size stays when it is freed.\"\"\"
    before = resident()
    block = torch.ones(mebibytes << 18)
    full = resident() - before
    del block
    return (resident() - before) / full

malloc.keep_memory()
torch.ones(1000)  # the libraries have loaded what they need
print(kept(24), kept(200))
look = next(thread for thread in threading.enumerate() if thread.name == "memory")
until = time.monotonic() + 100
while look.is_alive() and time.monotonic() < until:
    torch.ones(64 << 18)  # what is large is wanted again and again, for nothing but to be written once
print(kept(300))
"""


def _window(share: float, cleared: int = 10**6, resident: int = 0) -> Spent:
    return Spent(1.0 - share, share, cleared, resident)


def test_large_blocks_are_kept_where_clearing_them_takes_a_good_part_of_the_time() -> None:
    assert not is_dear(_window(DEAR * 0.9))
    assert is_dear(_window(DEAR * 1.1))


def test_time_in_the_kernel_that_is_not_for_pages_does_not_count() -> None:
    assert not is_dear(_window(0.9, cleared=100))


def test_what_has_passed_before_is_not_of_this_window() -> None:
    assert Spent(5.0, 3.0, 70, 9).since(Spent(4.0, 1.0, 30, 8)) == Spent(1.0, 2.0, 40, 1)


def test_pages_that_came_to_stay_were_not_cleared_again() -> None:
    assert is_dear(_window(0.3, cleared=10**6, resident=100_000))
    assert not is_dear(_window(0.3, cleared=10**6, resident=900_000))
    assert is_dear(_window(0.3, cleared=10**6, resident=-900_000))
    assert not is_dear(_window(0.9, cleared=0))


@on_linux
def test_what_is_large_goes_back_until_that_is_dear() -> None:
    if _HUGE.exists() and "[always]" in _HUGE.read_text():
        pytest.skip("this kernel gives huge pages unasked: clearing is cheap, and large blocks stay mapped")
    done = subprocess.run([sys.executable, "-c", _TRAINS], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (small, large), (after,) = [map(float, line.split()) for line in done.stdout.splitlines()]
    assert small > 0.9
    assert large < 0.1
    assert after > 0.9


@on_linux
def test_where_one_cannot_look_it_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called = list[str]()
    monkeypatch.setattr(malloc, "_RESIDENT", tmp_path / "none")
    look_after(lambda: called.append("kept"), look_s=0.0)
    assert called == []


@on_linux
def test_what_a_worker_forks_keeps_everything() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.9
