"""Shoal: the script that `shoal train` runs while workers are killed, frozen and added. Its events are the step log."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import shoal
from benchmarks import workloads
from benchmarks.runners.job import Job
from benchmarks.runners.steplog import STOP, note_birth
from shoal.core.events import StepCommitted
from shoal.train.callbacks.base import Callback, RunInfo, Stop

_FOR_EVER = 1_000_000  # epochs


class _UntilToldTo(Callback):
    def __init__(self, job: Job) -> None:
        self._stop = Path(job.directory) / STOP

    def on_step(self, event: StepCommitted, run: RunInfo) -> Stop | None:
        return Stop("all was measured") if self._stop.exists() else None


def main() -> None:
    job = Job.load()
    note_birth(job)
    torch.set_num_threads(1)
    shoal.Trainer(
        model=workloads.model(job),
        loss=nn.CrossEntropyLoss(),
        optimizer=workloads.optimizer,
        train=workloads.samples(job),
        global_batch=job.global_batch,
        grain=job.batch,
        epochs=_FOR_EVER,
        seed=job.seed,
        eval_every="never",
        checkpoint={"every": "never"},
        callbacks=[_UntilToldTo(job)],
    ).fit()


if __name__ == "__main__":
    main()
