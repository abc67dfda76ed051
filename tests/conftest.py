"""Fixtures for all tests: real ranks, and a guard against what tests of processes leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from shoal.testing.ranks import RankHarness
from shoal.testing.services.fixtures import _hdfs, _s3, hdfs, s3  # noqa: F401 - fixtures
from shoal.testing.services.sharing import keepers

# how quick the machine is says nothing about the code, and a failure must come again when it is looked into
hypothesis.settings.register_profile("shoal", deadline=None, derandomize=True)
hypothesis.settings.load_profile("shoal")

# What a script starts in the background (`make test &`) has SIGINT ignored, and so has all that it starts in turn; but
# tests send it, to themselves and to their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_GRACE_S = 20.0  # nobody waits so long where nothing is left
_SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def _zygote() -> Iterator[RankHarness]:
    with RankHarness() as harness:
        yield harness


@pytest.fixture
def ranks(_zygote: RankHarness) -> RankHarness:
    """Runs functions on real worker processes, all forked from one zygote."""
    return _zygote


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system that holds as much as is asked for, such as ``512k``: one that can really be full. Where
    that cannot be done the test is skipped, and says why."""
    disk = tmp_path / "disk"

    def make(size: str) -> Path:
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        try:
            mounted = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command here")
        if mounted.returncode != 0:
            pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
        return disk

    yield make
    # a process that was killed may have a file there open for another moment
    held = _left_after_grace(lambda: {str(disk)} if disk.is_mount() and not _unmounted(disk) else set())
    assert not held, f"still in use: {held}"


def _unmounted(disk: Path) -> bool:
    return subprocess.run(["umount", str(disk)], timeout=30, check=False, capture_output=True).returncode == 0


def children() -> set[int]:
    """The processes, zombies included, whose parent is this one."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            continue
    return found


def _named_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon or thread.name.startswith("shoal-")}


def _signals() -> dict[signal.Signals, Any]:
    """Who heeds the signals by which people end things."""
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def _shared_files() -> set[str]:
    found = {entry.name for entry in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.is_dir() else set()
    return {name for name in found if not _left_by_another_test_process(name)}


def _left_by_another_test_process(name: str) -> bool:
    """Whether this is what the test of this very guard leaves on purpose, in a process of tests beside this one."""
    stem, _, pid = name.rpartition("-")
    return stem == "shoal-leak" and int(pid) not in (os.getpid(), os.getppid())


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200] or "a zombie"
    except OSError:
        return "gone"


def _used_elsewhere(name: str) -> bool:
    """Whether a process that is not ours holds this file of /dev/shm: then another program made it."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if int(maps.parent.name) != os.getpid() and f"/dev/shm/{name}" in maps.read_text():
                return True
        except OSError:
            continue
    return False


def _left_after_grace(find: Callable[[], set[str]]) -> set[str]:
    until = time.monotonic() + _GRACE_S
    while (left := find()) and time.monotonic() < until:
        time.sleep(0.02)
    return left


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a child process, a thread or a file in shared memory."""
    before = children(), _named_threads(), _shared_files()
    heeded = _signals()
    yield
    changed = {number: handler for number, handler in heeded.items() if signal.getsignal(number) != handler}
    for number, handler in changed.items():
        signal.signal(number, handler)
    tolerated = {getattr(resource_tracker._resource_tracker, "_pid", None), *keepers}
    harness: RankHarness | None = request.getfixturevalue("_zygote") if "ranks" in request.fixturenames else None
    zygote = harness.pid if harness is not None else None
    open_run = harness is not None and harness.run_is_open
    if open_run and harness is not None:
        harness.close_run()  # the next test needs the zygote

    def left() -> set[str]:
        processes = children() - before[0] - tolerated - {zygote}
        files = {name for name in _shared_files() - before[2] if not _used_elsewhere(name)}
        return {
            *(["a run of ranks that was not closed"] if open_run else []),
            *(f"process {pid} ({_command(pid)})" for pid in processes),
            *(f"thread {thread.name}" for thread in _named_threads() - before[1]),
            *(f"/dev/shm/{name}" for name in files),
        }

    found = _left_after_grace(left) | {f"another handler of {number.name}" for number in changed}
    if found:
        pytest.fail("the test has left behind: " + ", ".join(sorted(found)), pytrace=False)
