"""What one run has to do, and what its workers report. Standard library only: the driver imports it too."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

JOB_VARIABLE = "BENCHMARK_JOB"  # names the file that holds the job: the one way all launchers hand things on


@dataclass(frozen=True)
class Job:
    """One run of one workload."""

    workload: str
    seed: int
    steps: int  # measured
    warmup: int  # steps before them, left out
    workers: int
    batch: int  # of one worker
    directory: str  # where reports go

    @property
    def total_steps(self) -> int:
        return self.warmup + self.steps

    @property
    def global_batch(self) -> int:
        return self.workers * self.batch

    def save(self) -> Path:
        path = Path(self.directory) / "job.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @staticmethod
    def load() -> Job:
        """The job that the environment names."""
        return Job(**json.loads(Path(os.environ[JOB_VARIABLE]).read_text()))


@dataclass(frozen=True)
class Report:
    """What one worker measured, by its own clock, from the end of the warm-up to the end of its last step."""

    elapsed_s: float
    cpu_s: float  # of the whole process, all threads
    page_faults: int  # those served without reading from disk: memory given back and asked for anew
    checksum: float  # of the parameters at the end

    def save(self, job: Job, rank: int) -> None:
        """Write the report whole or not at all: a run that dies here has not reported."""
        path = Path(job.directory) / f"report-{rank}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)


def mark_first_step(job: Job) -> None:
    """Note the time of the wall clock at which the first step was over. Called by the first worker."""
    (Path(job.directory) / "first-step").write_text(repr(time.time()))


def reports(directory: Path) -> list[Report]:
    return [Report(**json.loads(path.read_text())) for path in sorted(directory.glob("report-*.json"))]


@dataclass(frozen=True)
class _Reading:
    wall_s: float
    cpu_s: float
    page_faults: int

    @staticmethod
    def now() -> _Reading:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return _Reading(time.perf_counter(), used.ru_utime + used.ru_stime, used.ru_minflt)


class Stopwatch:
    """Call `step()` after every training step. Meets the others once the warm-up is over, then starts."""

    def __init__(self, job: Job, meet: Callable[[], object]) -> None:
        self._job, self._meet = job, meet
        self._done = 0
        self._begin = self._end = _Reading(0.0, 0.0, 0)

    def step(self) -> None:
        self._done += 1
        if self._done == self._job.warmup:
            self._meet()
            self._begin = _Reading.now()
        elif self._done == self._job.total_steps:
            self._end = _Reading.now()

    def report(self, checksum: float) -> Report:
        """What was measured. Raises where the job's steps have not all been made."""
        if self._done != self._job.total_steps:
            raise RuntimeError(f"{self._done} steps were made, not {self._job.total_steps}")
        begin, end = self._begin, self._end
        return Report(end.wall_s - begin.wall_s, end.cpu_s - begin.cpu_s, end.page_faults - begin.page_faults, checksum)
