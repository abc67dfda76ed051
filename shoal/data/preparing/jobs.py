"""From what a user calls a job to steps: a name, a file, functions, or several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError, nearest
from shoal.data.preparing.builtin import builtin_jobs, make_builtin
from shoal.data.preparing.job import Job, JobStep
from shoal.data.preparing.step import Chain, Step

JobLike = str | Path | Job | Step | Callable[[Any], Any]


def open_jobs(job: JobLike | Sequence[JobLike] | None) -> Chain:
    """Raises `ConfigError` or `UserError` for what is no job."""
    if job is None:
        return Chain(())
    jobs = [job] if isinstance(job, str | Path | Job | Step) or not isinstance(job, Sequence) else list(job)
    return Chain(tuple(_open(one) for one in jobs))


def _open(job: JobLike) -> Step:
    if isinstance(job, Step):
        return job
    if isinstance(job, Job):
        return JobStep.of(job)
    if isinstance(job, Path) or (isinstance(job, str) and job.endswith(".py")):
        path = Path(job).expanduser()
        try:
            return JobStep.of_file(str(path), path.read_text())
        except OSError as error:
            raise ConfigError(f"--job {path} cannot be read: {error.strerror or error}") from None
    if isinstance(job, str):
        name = job.partition(":")[0]
        if name not in builtin_jobs:
            raise ConfigError(
                f"--job {job}: no file (its path would end in .py) and no built-in job: {nearest(name, builtin_jobs)}"
            )
        return make_builtin(job)
    if callable(job):
        return JobStep.of(Job(map=job, name=getattr(job, "__name__", "map")))
    raise ConfigError(f"a job is a name, a file, a function or a shoal.data.Job, not {type(job).__name__}")
