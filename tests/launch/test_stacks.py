"""The stack of a process that cannot help: stuck, frozen, gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.launch import stacks
from shoal.launch.stacks import take_stack

pytestmark = pytest.mark.ranks

STUCK = """
import threading, time

def fetch_for_ever(ready):
    ready.set()
    while True:
        time.sleep(1000)

def my_loss(lock):
    print("stuck", flush=True)
    lock.acquire()  # never comes back

if __name__ == "__main__":
    ready, lock = threading.Event(), threading.Lock()
    threading.Thread(target=fetch_for_ever, args=(ready,), name="fetcher", daemon=True).start()
    threading.Thread(target=threading.Event().wait, name="of-a-library", daemon=True).start()
    ready.wait()
    lock.acquire()
    my_loss(lock)
"""


@contextmanager
def running(script: Path, *command: str) -> Iterator[int]:
    """A process that has come to the place where it is stuck."""
    process = subprocess.Popen(command or (sys.executable, str(script)), stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"stuck\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train_digits.py"
    path.write_text(STUCK)
    return path


def stack_with(pid: int, wanted: str) -> str:
    """The stack, once the process has come to `wanted`: it may be a moment before it."""
    until = time.monotonic() + 60
    while True:
        stack = take_stack(pid, 30.0)
        assert stack is not None
        if wanted in stack:
            return stack
        assert time.monotonic() < until, stack


def check(stack: str, script: Path) -> None:
    main, _, others = stack.partition("Thread ")
    assert f'File "{script}"' in main
    assert "in my_loss" in main
    assert "never comes back" in main
    assert main.index("in <module>") < main.index("in my_loss")  # the most recent call last
    assert others.startswith("fetcher:")
    assert "in fetch_for_ever" in others
    assert "of-a-library" not in stack


def test_a_stuck_process_shows_where(script: Path) -> None:
    with running(script) as pid:
        check(stack_with(pid, "never comes back"), script)


def test_a_frozen_process_shows_where_and_stays_frozen(script: Path) -> None:
    with running(script) as pid:
        stack_with(pid, "never comes back")
        os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + 30
        while state_of(pid) != "T":
            assert time.monotonic() < until
            time.sleep(0.005)
        check(take_stack(pid, 30.0) or "", script)
        assert state_of(pid) == "T"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


INSIDE = """
import threading
from shoal.core.errors import nearest

def names():
    print("stuck", flush=True)
    threading.Event().wait()  # never comes back
    yield "name"

nearest("named", names())
"""


def test_frames_of_shoal_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(INSIDE)
    with running(path) as pid:
        stack = stack_with(pid, "never comes back")
    assert "in names" in stack
    assert "errors.py" not in stack


def test_if_nothing_would_be_left_all_is_shown() -> None:
    code = 'import threading; print("stuck", flush=True); threading.Event().wait()'
    frames = [{"filename": "<string>", "line": 1, "name": "<module>"}]
    with running(Path(), sys.executable, "-c", code) as pid:
        assert stack_with(pid, "threading.py")
    shown = stacks._show(7, [{"os_thread_id": 7, "thread_name": "MainThread", "frames": frames}])
    assert '"<string>", line 1' in shown


def test_a_process_that_is_gone_has_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert take_stack(process.pid) is None


def test_without_the_tool_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_spy", lambda: None)
    assert take_stack(os.getpid()) is None
