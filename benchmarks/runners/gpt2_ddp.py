"""GPT-2 on raw DistributedDataParallel under torchrun."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.runners import gpt2_work
from benchmarks.runners.job import Job, Stopwatch


def main() -> None:
    job = Job.load()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(gpt2_work.model(job).train())
    optimizer = gpt2_work.optimizer(model.parameters())
    stopwatch = Stopwatch(job, meet=dist.barrier)
    for texts in gpt2_work.samples(job).split(job.global_batch):
        optimizer.zero_grad()
        gpt2_work.loss(model, (texts[rank * job.batch : (rank + 1) * job.batch],)).backward()
        optimizer.step()
        stopwatch.step()
    stopwatch.report(0.0).save(job, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
