"""A script as small as the digits example, on raw DDP: it says when its first step was over."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.runners.job import Job, mark_first_step


def main() -> None:
    job = Job.load()
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    dist.init_process_group("gloo")
    x, y = torch.randn(1437, 64), torch.randint(10, (1437,))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for step in range(job.steps):
        start = step * job.global_batch + dist.get_rank() * job.batch
        optimizer.zero_grad()
        criterion(model(x[start : start + job.batch]), y[start : start + job.batch]).backward()
        optimizer.step()
        if step == 0 and dist.get_rank() == 0:
            mark_first_step(job)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
