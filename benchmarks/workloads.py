"""The work that every peer does: a few models, batches in memory, one optimizer, all from the job's seed.

The samples of a run are one tensor, random and shaped as CIFAR-10. Step s takes the s-th G rows,
and worker r of N computes the r-th part of them, so that the same job trains the same parameters whoever
runs it. Enough samples are made for the whole run: no epoch ends inside the measured part.

Every peer but Shoal is handed a list of ready batches, contiguous views of that tensor: no loader, no
gathering, no copy. Shoal is handed the tensor itself, since reading samples in its own order is part of
what it does, and pays for gathering each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.runners.job import Job

CLASSES = 10
SAMPLE_SHAPE = (3, 32, 32)
LEARNING_RATE = 0.01
MOMENTUM = 0.9

Batch = tuple[Tensor, Tensor]


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A: strided, zero channels added)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride, self.new_channels = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.new_channels:
            half = self.new_channels // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(y + x)


class ResNet20(nn.Module):
    """ResNet-20 of He et al. (v1) for 32x32 images: 269,722 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        blocks, channels_in = [], 16
        for channels, first_stride in ((16, 1), (32, 2), (64, 2)):
            for stride in (first_stride, 1, 1):
                blocks.append(_Block(channels_in, channels, stride))
                channels_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))
        return logits


def mlp() -> nn.Module:
    """3072 -> 2048 -> 2048 -> 10: 10,510,346 parameters, 42 MB of gradient for little computation."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3072, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Linear(2048, CLASSES),
    )


def wide() -> nn.Module:
    """3072 -> 5120 -> 4096 -> 3072 -> 10 with batch normalisation: 49,350,666 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3072, 5120),
        nn.BatchNorm1d(5120),
        nn.ReLU(),
        nn.Linear(5120, 4096),
        nn.BatchNorm1d(4096),
        nn.ReLU(),
        nn.Linear(4096, 3072),
        nn.BatchNorm1d(3072),
        nn.ReLU(),
        nn.Linear(3072, CLASSES),
    )


def small() -> nn.Module:
    """3072 -> 32 -> 10: 98,666 parameters; a step is over in a few milliseconds, so that a pause stands out."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def convnet() -> nn.Module:
    """Three convolutions, 14,666 parameters: much to compute, little to send, and nothing that looks at its batch."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


@dataclass(frozen=True)
class Workload:
    """A model, and how many parameters it must have to be the one that is meant."""

    build: Callable[[], nn.Module]
    parameters: int


WORKLOADS = {
    "resnet20": Workload(ResNet20, 269_722),
    "mlp": Workload(mlp, 10_510_346),
    "wide": Workload(wide, 49_350_666),
    "small": Workload(small, 98_666),
    "convnet": Workload(convnet, 14_666),
}


def model(job: Job) -> nn.Module:
    """The model of `job` with its initial parameters, the same in every process."""
    torch.manual_seed(job.seed)
    return WORKLOADS[job.workload].build()


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)


def samples(job: Job) -> Batch:
    """All samples of the run, in the order in which they are used."""
    generator = torch.Generator().manual_seed(job.seed + 1)
    count = job.total_steps * job.global_batch
    x = torch.randn(count, *SAMPLE_SHAPE, generator=generator)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def batches(job: Job, rank: int) -> list[Batch]:
    """The batches of worker `rank`, one for each step, as views of the samples."""
    x, y = samples(job)
    starts = [step * job.global_batch + rank * job.batch for step in range(job.total_steps)]
    return [(x[start : start + job.batch], y[start : start + job.batch]) for start in starts]


def checksum(module: nn.Module) -> float:
    """The norm of all parameters: peers that did the same work agree in it."""
    with torch.no_grad():
        return float(sum(p.double().square().sum() for p in module.parameters()) ** 0.5)
