"""Run one command with a deadline, and leave nothing of it behind. Linux only.

Launchers put their workers into sessions of their own, so that ending a process group is not enough: while a
command runs, its orphans become children of this process, and what is left of them at the end is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.catalogue import ROOT

_QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "ignore",
    "RAY_USAGE_STATS_ENABLED": "0",  # no network traffic beside the run
    "HF_HUB_OFFLINE": "1",
    "LITLOGGER_DISABLED": "1",
}


@dataclass(frozen=True)
class Finished:
    """How a command ended. `status` is None where the deadline ended it."""

    status: int | None
    started_at: float  # seconds since the epoch
    wall_s: float
    log: str

    def reason(self) -> str:
        """One line on why it failed: the last line of its log that says something."""
        if self.status is None:
            return f"stopped after {self.wall_s:.0f} s"
        lines = [line.strip() for line in self.log.splitlines() if line.strip(" =-")]
        errors = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
        return f"exit status {self.status}: {(errors or lines or ['no output'])[-1][:200]}"


def run(command: Sequence[str], variables: dict[str, str], log: Path, timeout_s: float) -> Finished:
    """Run `command` from the root of the repository with one thread a process; wait at most `timeout_s`.

    Other threads must not start processes meanwhile: they would be taken for the command's.
    """
    status: int | None = None
    with ending_orphans():
        started_at, begin = time.time(), time.perf_counter()
        process = start(command, variables, log)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout_s)
        finally:
            wall_s = time.perf_counter() - begin
            process.kill()
            process.wait()
    return Finished(status, started_at, wall_s, log.read_text(errors="replace"))


def start(command: Sequence[str], variables: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command` as `run` does, and do not wait. Meant for use within `ending_orphans`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, cwd=ROOT, env={**environment(log.parent), **variables}, stdout=output, stderr=output
        )


def environment(directory: Path) -> dict[str, str]:
    """The variables of a command: one thread a process. What it leaves in the temporary folder is in `directory`."""
    return {**os.environ, **_QUIET, "TMPDIR": str(directory)}


@contextlib.contextmanager
def ending_orphans() -> Iterator[None]:
    """Adopt the orphans of all that is started inside, and kill at the end what is left of them and of it."""
    before = _children()
    _adopt(True)
    try:
        yield
    finally:
        while orphans := _children() - before:  # to kill one may bring its own children here
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(orphan, signal.SIGKILL)
                    os.waitpid(orphan, 0)
        _adopt(False)


def _adopt(yes: bool) -> None:
    set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
    ctypes.CDLL(None).prctl(set_child_subreaper, int(yes), 0, 0, 0)


def _children() -> set[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(number) for task in tasks for number in task.read_text().split()}
