"""Run one command in a session of its own, with a deadline, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
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
    """Run `command` from the root of the repository with one thread a process; wait at most `timeout_s`."""
    # what the command leaves in the temporary folder goes with the folder of its log
    environment = {**os.environ, **_QUIET, "TMPDIR": str(log.parent), **variables}
    with log.open("wb") as output:
        started_at, begin = time.time(), time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        status: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout_s)
        finally:
            wall_s = time.perf_counter() - begin
            _end_group(process)
    return Finished(status, started_at, wall_s, log.read_text(errors="replace"))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the session. Its number stays taken as long as anything of it lives."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
