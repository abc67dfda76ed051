"""torchft: data parallel on gloo, one worker a replica group, with the settings of torchft's own example for DDP.

Gradients are averaged by the Manager itself, in one tensor: with the DDP wrapper of torchft 0.2.0 a survivor dies of an
AssertionError when a collective fails, and nothing would be left to measure.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torchft import Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]  # only with the peers

from benchmarks import workloads
from benchmarks.runners.job import Job
from benchmarks.runners.steplog import STOP, StepLog, note_birth

REPLICA_VARIABLE = "REPLICA_GROUP_ID"


def main() -> None:
    job, replica = Job.load(), int(os.environ[REPLICA_VARIABLE])
    note_birth(job)
    torch.set_num_threads(1)
    module = workloads.model(job)
    inner = workloads.optimizer(module.parameters())

    def load_state_dict(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica_{replica}",
        timeout=timedelta(seconds=30),
        hostname="localhost",
    )
    optimizer = Optimizer(manager, inner)
    criterion = nn.CrossEntropyLoss()
    batches, log = workloads.batches(job, replica % job.workers), StepLog(job)
    while not (Path(job.directory) / STOP).exists():
        step = manager.current_step()
        x, y = batches[step % len(batches)]
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        summed = parameters_to_vector(gradients)
        manager.allreduce(summed).wait()
        vector_to_parameters(summed, gradients)
        optimizer.step()
        if manager.current_step() > step:  # it was committed
            log.commit(manager.current_step(), manager.num_participants())


if __name__ == "__main__":
    main()
