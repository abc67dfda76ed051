"""Lightning: its Trainer with the `ddp` strategy, as its users run it, everything optional switched off.

Not Fabric: that is DDP with a wrapper, and what is compared here is a trainer with a trainer.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from lightning import LightningModule, Trainer  # type: ignore[import-not-found]  # only in the peers' environment
from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found]  # as above
from torch import Tensor, nn

from benchmarks import workloads
from benchmarks.runners.job import Job, Stopwatch


class _Classifier(LightningModule):  # type: ignore[misc]  # Any where Lightning is not installed
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch: workloads.Batch) -> Tensor:
        x, y = batch
        loss: Tensor = self.criterion(self.model(x), y)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return workloads.optimizer(self.model.parameters())


class _Ready:
    """Batches that lie ready. Lightning takes a plain list for several loaders to be read side by side."""

    def __init__(self, batches: list[workloads.Batch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[workloads.Batch]:
        return iter(self._batches)


class _Timing(Callback):  # type: ignore[misc]  # Any where Lightning is not installed
    def __init__(self, job: Job) -> None:
        self.stopwatch = Stopwatch(job, meet=torch.distributed.barrier)

    def on_train_batch_end(self, *_: Any) -> None:
        self.stopwatch.step()


def main() -> None:
    job = Job.load()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # advice on loaders and loggers that are left out on purpose
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    timing = _Timing(job)
    trainer = Trainer(
        accelerator="cpu",
        devices=job.workers,
        strategy="ddp",
        max_epochs=1,
        callbacks=[timing],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=job.directory,
    )
    module = _Classifier(workloads.model(job))
    trainer.fit(module, _Ready(workloads.batches(job, trainer.global_rank)))
    timing.stopwatch.report(workloads.checksum(module)).save(job, trainer.global_rank)


if __name__ == "__main__":
    main()
