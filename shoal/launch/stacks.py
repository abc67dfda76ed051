"""Where a worker is in the user's code, seen from outside: also of one that hangs or is frozen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary, StackSummary
from typing import Any

from shoal.launch.frames import hidden_paths

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_ATTEMPTS = 3  # the process is not paused, so what is read may be inconsistent while it runs


def take_stack(pid: int, deadline_s: float = 5.0) -> str | None:
    """The Python stack of process `pid`, as a traceback shows it: the main thread first, then other threads that are in
    the user's code. Frames of Shoal and torch are left out, unless nothing of the main thread would be left.

    The process need not help: it may be stuck or stopped, and stays as it is. Returns None where it cannot be done
    within the deadline: the process is gone, or does not let itself be looked at, or py-spy is not installed.
    """
    spy = find_spy()
    if spy is None:
        return None
    until = time.monotonic() + deadline_s
    for _ in range(_ATTEMPTS):
        threads = _look(spy, pid, until - time.monotonic())
        if threads:
            return _show(pid, threads)
        if not Path(f"/proc/{pid}").exists():
            return None
    return None


def find_spy() -> str | None:
    """Where py-spy is: installed with this Python, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _look(spy: str, pid: int, limit_s: float) -> list[dict[str, Any]]:
    """What py-spy says of the threads of `pid`; nothing where it fails."""
    command = [spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=max(limit_s, 0.0), check=True)
        threads: list[dict[str, Any]] = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError):
        return []
    return threads


def _show(pid: int, threads: Sequence[dict[str, Any]]) -> str:
    text = []
    for thread in sorted(threads, key=lambda one: one["os_thread_id"] != pid):
        main = thread["os_thread_id"] == pid
        frames = [_frame(frame) for frame in reversed(thread["frames"])]  # the most recent call last
        shown = [frame for frame in frames if not frame.filename.startswith(hidden_paths())]
        if main:
            shown = shown or frames
        elif not any(_is_users(frame.filename) for frame in shown):
            continue  # a thread of some library
        name = thread["thread_name"] or thread["os_thread_id"]
        heading = "" if main else f"Thread {name}:\n"
        text.append(heading + "".join(StackSummary.from_list(shown).format()).rstrip("\n"))
    return "\n".join(text)


def _frame(frame: dict[str, Any]) -> FrameSummary:
    return FrameSummary(frame["filename"], frame["line"], frame["name"].rpartition(".")[2])


def _is_users(filename: str) -> bool:
    """Whether a file is neither Python's own nor installed with it."""
    return not filename.startswith(tuple(map(sysconfig.get_path, _INSTALLED)))
