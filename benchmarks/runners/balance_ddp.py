"""Raw DistributedDataParallel with one slow worker: everyone has the same share, so everyone waits for that one."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workloads
from benchmarks.runners.job import Job, Stopwatch
from benchmarks.runners.slowness import slowed


def main() -> None:
    job = Job.load()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(slowed(workloads.model(job), rank, job.workers))
    optimizer = workloads.optimizer(model.parameters())
    criterion = nn.CrossEntropyLoss()
    stopwatch = Stopwatch(job, meet=dist.barrier)
    for x, y in workloads.batches(job, rank):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        stopwatch.step()
    stopwatch.report(workloads.checksum(model)).save(job, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
