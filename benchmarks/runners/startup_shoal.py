"""The same script as startup_ddp.py for Shoal: it says when its first step was over."""

from __future__ import annotations

import torch
from torch import nn

import shoal
from benchmarks.runners.job import Job, mark_first_step
from shoal.core.events import StepCommitted
from shoal.train.callbacks.base import Callback, RunInfo


class _FirstStep(Callback):
    def __init__(self, job: Job) -> None:
        self.job, self.marked = job, False

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        if not self.marked:
            mark_first_step(self.job)
        self.marked = True


def main() -> None:
    job = Job.load()
    torch.manual_seed(job.seed)
    x, y = torch.randn(1437, 64), torch.randint(10, (1437,))
    shoal.Trainer(
        model=nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        train=(x, y),
        global_batch=job.global_batch,
        steps=job.steps,
        callbacks=[_FirstStep(job)],
    ).fit()


if __name__ == "__main__":
    main()
