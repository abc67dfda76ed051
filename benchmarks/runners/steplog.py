"""What workers leave for whoever watches them: when they were started, and each step. Standard library only."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.runners.job import Job

STOP = "stop"  # a file of this name in the job's directory: stop at the next step


def started_at(pid: int | str = "self") -> float:
    """When a process was started (forked), in seconds since the epoch, to a hundredth."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


@dataclass(frozen=True)
class Birth:
    """When a worker's process was started, and when its script began to run; seconds since the epoch."""

    started: float
    running: float


def note_birth(job: Job) -> None:
    """Say that this process works for `job`, and since when. Called first thing."""
    path = Path(job.directory) / f"born-{os.getpid()}"
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(asdict(Birth(started_at(), time.time()))))
    temporary.replace(path)


def births(directory: Path) -> dict[int, Birth]:
    """The births of the workers by their process id; those that have ended too."""
    found = directory.glob("born-*")
    return {int(path.name.partition("-")[2]): Birth(**json.loads(path.read_text())) for path in found}


class StepLog:
    """A line for each committed step of this process, there to be read at once."""

    def __init__(self, job: Job) -> None:
        path = Path(job.directory) / f"steps-{os.getpid()}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def commit(self, step: int, size: int) -> None:
        """Step number `step` has become part of the model; `size` workers made it."""
        os.write(self._file, f"{time.time():.6f} {step} {size}\n".encode())
