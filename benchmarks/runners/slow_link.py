"""What runs over a slow link have in common: the work, and what is kept of the model after each step.

After a step the parameters are copied within memory, with the time and the bytes sent so far; the clock stands still
meanwhile. What the loss of each copy is on a fixed part of the training samples is found out when the run is over, in
the same way for all.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import images, workloads
from benchmarks.curves import Curve, Point

TASK_VARIABLE = "BENCHMARK_SLOW_LINK"  # names the file that holds the task
CURVE = "curve.json"
_PROBE = 256  # samples
_COUNTERS = Path("/sys/class/net/eth0/statistics")


@dataclass(frozen=True)
class Task:
    """One run over two hosts, one worker on each."""

    workload: str
    seed: int
    steps: int
    global_batch: int
    rate: float
    momentum: float
    data: str  # directory of the images
    directory: str  # where the curve goes
    rank: int = 0  # of PowerSGD; 0: gradients travel as they are

    def save(self) -> Path:
        path = Path(self.directory) / "task.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @staticmethod
    def load() -> Task:
        """The task that the environment names."""
        return Task(**json.loads(Path(os.environ[TASK_VARIABLE]).read_text()))


def model(task: Task) -> nn.Module:
    """With its initial parameters, the same in every process."""
    torch.manual_seed(task.seed)
    return workloads.WORKLOADS[task.workload].build()


def samples(task: Task) -> tuple[Tensor, Tensor]:
    """All samples in the order in which they are used."""
    x, y = images.load(Path(task.data))
    count = task.steps * task.global_batch
    return torch.from_numpy(x[:count]), torch.from_numpy(y[:count])


def sent_bytes() -> float:
    """What a host has sent, on average: one of two has received what the other has sent."""
    return sum(int((_COUNTERS / name).read_text()) for name in ("tx_bytes", "rx_bytes")) / 2


class Keeper:
    """Keeps the parameters of a model after steps. Make it before the clock starts, which `start` does."""

    def __init__(self, task: Task, parameters: Iterable[nn.Parameter]) -> None:
        self._task = task
        numel = sum(parameter.numel() for parameter in parameters)
        self._copies = torch.zeros(task.steps + 1, numel)  # in memory already when a step is over
        self._copies.fill_(1.0)
        self._notes: list[tuple[int, float, float]] = []

    def start(self) -> None:
        self._sent_before = sent_bytes()
        self._began = time.perf_counter()

    @torch.no_grad()
    def keep(self, step: int, parameters: Iterable[nn.Parameter]) -> None:
        """The model as it is after `step` steps; 0 before the first."""
        now = time.perf_counter()
        sent = sent_bytes() - self._sent_before
        flat, at = self._copies[len(self._notes)], 0
        self._notes.append((step, now - self._began, sent))
        for parameter in parameters:
            flat[at : at + parameter.numel()].view(parameter.shape).copy_(parameter)
            at += parameter.numel()
        self._began += time.perf_counter() - now

    def finish(self) -> None:
        """Write the curve, whole or not at all."""
        judge = model(self._task)
        x, y = samples(self._task)
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(self._task.seed))[:_PROBE]
        points = []
        for (step, seconds, sent), flat in zip(self._notes, self._copies, strict=False):
            points.append(Point(step, seconds, sent, _loss(judge, flat, x[chosen], y[chosen])))
        path = Path(self._task.directory) / CURVE
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(Curve(tuple(points)).to_json()))
        temporary.replace(path)


@torch.no_grad()
def _loss(judge: nn.Module, flat: Tensor, x: Tensor, y: Tensor) -> float:
    """As in training: batch normalisation goes by the batch, so running statistics do not matter."""
    at = 0
    for parameter in judge.parameters():
        parameter.copy_(flat[at : at + parameter.numel()].view(parameter.shape))
        at += parameter.numel()
    judge.train()
    return float(F.cross_entropy(judge(x), y))
