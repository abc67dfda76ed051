"""Hugging Face Accelerate: `prepare`, `backward`, `step`.

The loader is not prepared, as the batches lie ready in memory; Accelerate's own loader would only add to
its time.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator  # type: ignore[import-not-found]  # only in the peers' environment
from torch import nn

from benchmarks import workloads
from benchmarks.runners.job import Job, Stopwatch


def main() -> None:
    job = Job.load()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    if accelerator.num_processes != job.workers:
        raise RuntimeError(f"Accelerate runs {accelerator.num_processes} processes, not {job.workers}")
    module = workloads.model(job)
    model, optimizer = accelerator.prepare(module, workloads.optimizer(module.parameters()))
    criterion = nn.CrossEntropyLoss()
    stopwatch = Stopwatch(job, meet=torch.distributed.barrier)
    for x, y in workloads.batches(job, accelerator.process_index):
        optimizer.zero_grad()
        accelerator.backward(criterion(model(x), y))
        optimizer.step()
        stopwatch.step()
    stopwatch.report(workloads.checksum(module)).save(job, accelerator.process_index)
    accelerator.end_training()


if __name__ == "__main__":
    main()
