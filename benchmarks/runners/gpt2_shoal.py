"""GPT-2 on Shoal, with nothing set: the script that `shoal train` runs."""

from __future__ import annotations

from torch.utils.data import TensorDataset

import shoal
from benchmarks.runners import gpt2_work
from benchmarks.runners.job import Job, Stopwatch
from shoal.core.events import RunEnded, StepCommitted
from shoal.train.callbacks.base import Callback, RunInfo


class _Timing(Callback):
    """Runs on the first worker. Steps are synchronous, so its clock is everybody's: no need to meet."""

    def __init__(self, job: Job) -> None:
        self.job, self.stopwatch = job, Stopwatch(job, meet=lambda: None)

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        self.stopwatch.step()

    def on_run_ended(self, event: RunEnded, run: RunInfo) -> None:
        if event.status == "completed":
            self.stopwatch.report(0.0).save(self.job, rank=0)


def main() -> None:
    job = Job.load()
    shoal.Trainer(
        model=lambda: gpt2_work.model(job),
        loss=gpt2_work.loss,
        optimizer=gpt2_work.optimizer,
        train=TensorDataset(gpt2_work.samples(job)),
        global_batch=job.global_batch,
        steps=job.total_steps,
        checkpoint={"every": "never"},
        callbacks=[_Timing(job)],
    ).fit()


if __name__ == "__main__":
    main()
