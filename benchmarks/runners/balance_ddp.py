"""Raw DistributedDataParallel with one slow worker: everyone has the same share, so everyone waits for that one."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workloads
from benchmarks.runners.job import Job
from benchmarks.runners.slowness import slowed
from benchmarks.runners.turns import Turns


def main() -> None:
    job = Job.load()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(slowed(workloads.model(job), rank, job.workers))
    optimizer = workloads.optimizer(model.parameters())
    criterion = nn.CrossEntropyLoss()
    turns = Turns(Path(job.directory)) if rank == 0 else None
    going = torch.tensor([turns is None or turns.begin()])
    for x, y in cycle(workloads.batches(job, rank)):
        dist.broadcast(going, 0)
        if not going:
            break
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        if turns is not None:
            going[0] = turns.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
