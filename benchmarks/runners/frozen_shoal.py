"""Shoal with servers, while a worker is frozen: every worker writes down when a commit of its own was acknowledged."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import shoal
from benchmarks import workloads
from benchmarks.runners.job import Job
from benchmarks.runners.steplog import STOP, StepLog, note_birth
from shoal.core.events import StepCommitted
from shoal.store.transactions import Transactions
from shoal.train.callbacks.base import Callback, RunInfo, Stop

_FOR_EVER = 1_000_000  # epochs
_EPOCH = 1 << 16  # steps: workers meet at the end of an epoch, and none should fall into a freeze


class _Again(Dataset[tuple[Tensor, ...]]):
    """The same few samples again and again: an epoch that is longer than memory has room for."""

    def __init__(self, samples: tuple[Tensor, ...], length: int) -> None:
        self._samples, self._length = samples, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(one[index % len(one)] for one in self._samples)


class _UntilToldTo(Callback):
    def __init__(self, job: Job) -> None:
        self._stop = Path(job.directory) / STOP

    def on_step(self, event: StepCommitted, run: RunInfo) -> Stop | None:
        return Stop("all was measured") if self._stop.exists() else None


def write_commits_down(job: Job) -> None:
    """In the log of this process, once each is acknowledged by the servers."""
    log, commit = StepLog(job), Transactions.commit

    @functools.wraps(commit)
    def logged(self: Transactions, *given: Any, **settings: Any) -> Any:
        answer = commit(self, *given, **settings)
        log.commit(answer.number, job.workers)
        return answer

    Transactions.commit = logged  # type: ignore[method-assign]  # the one way to see commits of single workers


def main() -> None:
    job = Job.load()
    note_birth(job)
    torch.set_num_threads(1)
    write_commits_down(job)
    shoal.Trainer(
        model=workloads.model(job),
        loss=nn.CrossEntropyLoss(),
        optimizer=workloads.optimizer,
        train=_Again(workloads.samples(job), _EPOCH * job.global_batch),
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
