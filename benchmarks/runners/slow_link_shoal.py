"""Shoal over a slow link: the script that `shoal train` and `shoal join` run. The strategy is on the command line."""

from __future__ import annotations

import torch
from torch import nn

import shoal
from benchmarks.runners.slow_link import Keeper, Task, model, samples
from shoal.core.events import RunEnded, RunStarted, StepCommitted
from shoal.train.callbacks.base import Callback, RunInfo

_WORKERS = 2


class _Keeping(Callback):
    """Runs on the first worker."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def on_run_started(self, event: RunStarted, run: RunInfo) -> None:
        self._keeper = Keeper(self._task, run.module.parameters())
        self._keeper.start()
        self._keeper.keep(0, run.module.parameters())

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        self._keeper.keep(event.cursor.step, run.module.parameters())

    def on_run_ended(self, event: RunEnded, run: RunInfo) -> None:
        if event.status == "completed":
            self._keeper.finish()


def main() -> None:
    task = Task.load()
    torch.set_num_threads(1)
    shoal.Trainer(
        model=model(task),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=task.rate, momentum=task.momentum),
        train=samples(task),
        global_batch=task.global_batch,
        grain=task.global_batch // _WORKERS,  # so that batch normalisation sees what it sees under DDP
        steps=task.steps,
        seed=task.seed,
        loader={"shuffle": False},
        eval_every="never",
        checkpoint={"every": "never"},
        callbacks=[_Keeping(task)],
    ).fit()


if __name__ == "__main__":
    main()
