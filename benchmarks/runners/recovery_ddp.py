"""DDP that goes on from its checkpoint when torchrun starts it again: what a script under --max-restarts looks like."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workloads
from benchmarks.runners.job import Job
from benchmarks.runners.steplog import STOP, StepLog, note_birth

SAVE_EVERY_S = 1.0  # far oftener than anyone does: what is lost since the checkpoint is not what is compared


def main() -> None:
    job = Job.load()
    note_birth(job)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    module = workloads.model(job)
    optimizer = workloads.optimizer(module.parameters())
    path, step = Path(job.directory) / "checkpoint.pt", 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = DistributedDataParallel(module)
    criterion = nn.CrossEntropyLoss()
    batches, log = workloads.batches(job, rank), StepLog(job)
    saved_at = time.monotonic()
    while not (path.parent / STOP).exists():
        x, y = batches[step % len(batches)]
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        step += 1
        log.commit(step, size)
        if rank == 0 and time.monotonic() - saved_at > SAVE_EVERY_S:
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)
            saved_at = time.monotonic()


if __name__ == "__main__":
    main()
