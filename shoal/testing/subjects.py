"""What contract tests train: a network with data, loss and metrics, all a function of fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.testing.models import (
    CLASSES,
    CONTEXT,
    FEATURES,
    GPT,
    IMAGE_SIDE,
    MLP,
    VOCABULARY,
    Branches,
    Norms,
    ResNet,
    SparseBag,
    SparseTable,
)

IGNORED = -1  # a token whose prediction does not count
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Subject:
    """`grain` is stated where the model looks at its batch or draws per batch, and left open elsewhere.

    `learning_rate` is one at which training is not chaotic: rounding must not grow from step to step.
    """

    name: str
    build: Callable[[], nn.Module]
    loss: Any
    data: Callable[[int, int], Tensors]  # (samples, seed)
    grain: int | None = None
    learning_rate: float = 0.05
    metrics: dict[str, Any] | None = field(default=None)

    def model(self) -> nn.Module:
        """The network, the same bits at every call."""
        before = torch.get_rng_state()
        torch.manual_seed(20)
        model = self.build()
        torch.set_rng_state(before)
        return model

    def train(self, samples: int) -> Tensors:
        return self.data(samples, 1)

    def test(self, samples: int) -> Tensors:
        return self.data(samples, 2)


@cache
def _images(samples: int, seed: int) -> Tensors:
    """Noisy pictures of classes, some with a wrong label, so that the loss does not go to zero."""
    shapes = torch.randn(CLASSES, 1, IMAGE_SIDE, IMAGE_SIDE, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    noise = torch.randn(samples, 1, IMAGE_SIDE, IMAGE_SIDE, generator=generator)
    return 0.5 * shapes[labels] + noise, _some_wrong(labels, generator)


@cache
def _features(samples: int, seed: int) -> Tensors:
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(6))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    noise = torch.randn(samples, FEATURES, generator=generator)
    return 0.5 * centres[labels] + noise, _some_wrong(labels, generator)


def _some_wrong(labels: Tensor, generator: torch.Generator) -> Tensor:
    wrong = torch.rand(len(labels), generator=generator) < 0.15
    return torch.where(wrong, torch.randint(CLASSES, labels.shape, generator=generator), labels)


@cache
def _text(samples: int, seed: int) -> Tensors:
    """Sequences by a rule with exceptions. A prefix of each does not count: up to the whole of it."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.empty(samples, CONTEXT + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(VOCABULARY, (samples,), generator=generator)
    for at in range(CONTEXT):
        jump = torch.randint(VOCABULARY, (samples,), generator=generator)
        exception = torch.rand(samples, generator=generator) < 0.2
        tokens[:, at + 1] = torch.where(exception, jump, (3 * tokens[:, at] + 1) % VOCABULARY)
    targets = tokens[:, 1:].clone()
    prefix = torch.randint(CONTEXT + 2, (samples, 1), generator=generator)
    targets[torch.arange(CONTEXT).expand(samples, -1) < prefix] = IGNORED
    return tokens[:, :-1].contiguous(), targets


def masked_loss(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """A loss as a user writes it whose mean is over tokens: the sum, and how many count."""
    tokens, targets = batch
    total = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return total, (targets != IGNORED).sum()


def token_accuracy(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    tokens, targets = batch
    counted = targets != IGNORED
    return (model(tokens).argmax(dim=-1)[counted] == targets[counted]).sum(), counted.sum()


def _token_accuracy_of_output(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    counted = target != IGNORED
    return (output.argmax(dim=1)[counted] == target[counted]).sum(), counted.sum()


_ALL = (
    Subject("mlp", MLP, nn.CrossEntropyLoss(), _features, learning_rate=0.05),
    Subject("resnet", ResNet, nn.CrossEntropyLoss(), _images, grain=20, learning_rate=0.008),
    Subject("norms", Norms, nn.CrossEntropyLoss(), _images, grain=20, learning_rate=0.008),
    Subject("gpt", GPT, masked_loss, _text, grain=20, learning_rate=0.05, metrics={"accuracy": token_accuracy}),
    Subject(
        "gpt-module",
        lambda: GPT(classes_second=True),
        nn.CrossEntropyLoss(ignore_index=IGNORED),
        _text,
        grain=20,
        learning_rate=0.05,
        metrics={"accuracy": _token_accuracy_of_output},
    ),
    Subject("branches", Branches, nn.CrossEntropyLoss(), _features, learning_rate=0.05),
    Subject("sparse", SparseBag, nn.CrossEntropyLoss(), _features, learning_rate=0.05),
    Subject("table", SparseTable, nn.CrossEntropyLoss(), _features, learning_rate=0.5),
)
SUBJECTS = {subject.name: subject for subject in _ALL}
MAIN = ("mlp", "resnet", "gpt")  # the three that every law is proved on
