"""Shoal with one slow worker and shares that follow speed: the script that `shoal train` runs."""

from __future__ import annotations

import torch
from torch import nn

import shoal
from benchmarks import workloads
from benchmarks.runners.job import Job, Stopwatch
from benchmarks.runners.slowness import slowed
from shoal.core.events import RunEnded, StepCommitted
from shoal.launch.session import current
from shoal.train.callbacks.base import Callback, RunInfo


class _Timing(Callback):
    """Runs on the first worker. Steps are synchronous, so its clock is everybody's."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stopwatch = Stopwatch(job, meet=lambda: None)

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        self.stopwatch.step()

    def on_run_ended(self, event: RunEnded, run: RunInfo) -> None:
        if event.status == "completed":
            self.stopwatch.report(workloads.checksum(run.module)).save(self.job, rank=0)


def main() -> None:
    job = Job.load()
    torch.set_num_threads(1)
    shoal.Trainer(
        model=slowed(workloads.model(job), current().world.rank, job.workers),
        loss=nn.CrossEntropyLoss(),
        optimizer=workloads.optimizer,
        train=workloads.samples(job),
        global_batch=job.global_batch,
        steps=job.total_steps,
        seed=job.seed,
        balance="auto",
        loader={"shuffle": False},
        eval_every="never",
        checkpoint={"every": "never"},
        callbacks=[_Timing(job)],
    ).fit()


if __name__ == "__main__":
    main()
