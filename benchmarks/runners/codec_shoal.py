"""Shoal with whatever codec the command line says: the script that `shoal train` and `shoal join` run, in turns."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import shoal
from benchmarks import workloads
from benchmarks.runners.job import Job
from benchmarks.runners.turns import Turns
from shoal.core.events import RunStarted, StepCommitted
from shoal.train.callbacks.base import Callback, RunInfo, Stop

_FOR_EVER = 1_000_000  # epochs


class _InTurn(Callback):
    """Runs on the first worker; the others wait for it in their next step."""

    def __init__(self, job: Job) -> None:
        self._directory = Path(job.directory)

    def on_run_started(self, event: RunStarted, run: RunInfo) -> None:
        self._turns = Turns(self._directory)
        self._turns.begin()

    def on_step(self, event: StepCommitted, run: RunInfo) -> Stop | None:
        return None if self._turns.step() else Stop("all was measured")


def main() -> None:
    job = Job.load()
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
        callbacks=[_InTurn(job)],
    ).fit()


if __name__ == "__main__":
    main()
