"""What is computed, as a value that both Shoal and the reference are given. How it is carried out is no part of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from shoal.core.config import Clip
from shoal.testing.subjects import SUBJECTS, Subject
from shoal.train.schedules import Cosine, Function, Linear, Schedule, Steps, TorchSchedule

NO_CLIP = Clip()


@dataclass(frozen=True)
class Plan:
    """A training run by names and numbers. `samples` of 1,437 in batches of 100 leave a last one of 37."""

    subject: str = "mlp"
    samples: int = 1437
    epochs: int = 5
    global_batch: int = 100
    seed: int = 3
    optimizer: str = "momentum"
    schedule: str = "constant"
    clip: Clip = NO_CLIP
    precision: str = "float32"
    test_samples: int = 301
    statistics: str = "grain"

    @property
    def what(self) -> Subject:
        return SUBJECTS[self.subject]

    @property
    def grain(self) -> int | None:
        return self.what.grain if self.statistics == "grain" else None

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        rate = self.what.learning_rate
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=rate)
        if self.optimizer == "momentum":
            return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=1e-3)
        assert self.optimizer == "adamw"
        return torch.optim.AdamW(parameters, lr=0.1 * rate, weight_decay=0.01)


@dataclass(frozen=True)
class Rule:
    """A schedule as Shoal takes it, and the same as a plain function of (step, samples, epochs) behind a step."""

    given: Schedule | TorchSchedule | None
    factor: Callable[[int, int, float], float]


def _cosine_after_warmup(step: int, samples: int, epochs: float) -> float:
    return step / 4 if step < 4 else 0.1 + 0.9 * (1 + math.cos(math.pi * min(1.0, (step - 4) / 16))) / 2


RULES = {
    "constant": Rule(None, lambda step, samples, epochs: 1.0),
    "steps": Rule(Cosine("20 steps", warmup="4 steps", floor=0.1), _cosine_after_warmup),
    "samples": Rule(Linear("1600 samples"), lambda step, samples, epochs: max(0.0, 1 - samples / 1600)),
    "epochs": Rule(
        Steps(["1 epoch", "3 epochs"], by=0.5),
        lambda step, samples, epochs: 0.5 ** ((epochs >= 1 - 1e-9) + (epochs >= 3 - 1e-9)),
    ),
    "function": Rule(Function(lambda cursor: 1 / (1 + cursor.step)), lambda step, samples, epochs: 1 / (1 + step)),
    "torch": Rule(
        TorchSchedule(lambda optimizer: StepLR(optimizer, 6, gamma=0.5)),
        lambda step, samples, epochs: 0.5 ** (step // 6),
    ),
    "torch-epochs": Rule(
        TorchSchedule(lambda optimizer: StepLR(optimizer, 2, gamma=0.5), every="epoch"),
        lambda step, samples, epochs: 0.5 ** (int(epochs + 1e-9) // 2),
    ),
}
