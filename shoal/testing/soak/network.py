"""From a program as a value to its parts in PyTorch: the same bits at every call."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.config import Clip
from shoal.testing.soak.program import Program

CLASSES = 3
FEATURES = 16
PIECES = 4  # of a sample, where it is a sequence, and rows where it is a picture
IGNORED = -1
RARE_ABOVE = 1.4
Tensors = tuple[Tensor, ...]
RATES = {
    "sgd": 0.2, "momentum": 0.05, "adam": 0.01, "adamw": 0.01, "adafactor": 0.03, "muon": 0.02, "nadam": 0.01,
    "rprop": 0.005,
}  # fmt: skip
CLIPS = {"none": Clip(), "norm": Clip(norm=0.4), "value": Clip(value=0.05), "weights": Clip(weights=(-0.4, 0.4))}


class Network(nn.Module):
    """Called with the inputs of a batch and the numbers of its samples, of which `seen` may be told."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        width, plain = program.width, program.optimizer == "muon"  # which knows nothing but matrices
        self.program = program
        self.seen: Any = None  # called with a pass's numbers; what it returns, with the output's gradient
        self.affine, self.bias = not plain, not plain
        # before batch normalisation a bias has no effect: its gradient is pure rounding, which some optimizers blow up
        inner = self.bias and program.norm != "batch"
        self.entry = self._entry(width, inner)
        self.norms = nn.ModuleList(self._norm(width, at == 0) for at in range(program.layers))
        self.hidden = nn.ModuleList(nn.Linear(width, width, bias=inner) for _ in range(program.layers - 1))
        self.dropout = nn.Dropout(program.dropout)
        if program.inputs == 2:
            self.second = nn.Linear(PIECES, width, bias=self.bias)
        self.extras = nn.ModuleDict(
            {name: nn.Linear(FEATURES if name == "rare" else width, width, bias=self.bias) for name in program.extras}
        )
        if "tied" in program.extras:
            self.extras["twin"] = nn.Linear(width, width, bias=self.bias)
            self.extras["twin"].weight = self.extras["tied"].weight
        if "frozen" in program.extras:
            self.extras["frozen"].requires_grad_(False)
        self.head = nn.Linear(width, CLASSES, bias=self.bias)

    def _entry(self, width: int, bias: bool) -> nn.Module:
        program = self.program
        if program.body == "table":
            return nn.Embedding(program.rows, width, sparse=program.sparse)
        if program.body == "conv":
            return nn.Conv2d(1, width, 3, padding=1, bias=bias)
        if program.body == "lstm":
            return nn.LSTM(PIECES, width, 2 if program.draws else 1, batch_first=True, dropout=program.dropout)
        if program.body == "attention":
            return _Attention(width, program.dropout)
        return nn.Linear(FEATURES, width, bias=bias)

    def _norm(self, width: int, first: bool) -> nn.Module:
        match self.program.norm:
            case "batch":
                pictures = first and self.program.body == "conv"
                return (nn.BatchNorm2d if pictures else nn.BatchNorm1d)(width, affine=self.affine)
            case "layer":
                return nn.GroupNorm(1, width, affine=self.affine)
            case "group":
                return nn.GroupNorm(2, width, affine=self.affine)
            case _:
                return nn.Identity()

    def forward(self, *given: Tensor) -> Tensor:
        *inputs, numbers = given
        learned = self.seen(numbers) if self.seen is not None else None
        hidden = self._first(inputs[0])
        if self.program.inputs == 2:
            hidden = hidden + self.second(inputs[1])
        for extra in ("tied", "twin", "frozen"):
            if extra in self.extras:
                hidden = hidden + 0.5 * torch.tanh(self.extras[extra](hidden))
        if "rare" in self.program.extras and inputs[0].is_floating_point():
            rare = inputs[0][:, 0] > RARE_ABOVE
            if bool(rare.any()):
                hidden = hidden.index_add(0, rare.nonzero().flatten(), self.extras["rare"](inputs[0][rare]))
        for at, layer in enumerate(self.hidden):
            hidden = self.dropout(torch.tanh(self.norms[at + 1](layer(hidden))))
        output: Tensor = self.head(hidden)
        if learned is not None and output.requires_grad:
            output.register_hook(learned)  # type: ignore[no-untyped-call]
        return output

    def _first(self, given: Tensor) -> Tensor:
        body, norm = self.program.body, self.norms[0]
        if body == "conv":
            pictures: Tensor = self.dropout(torch.tanh(norm(self.entry(given.view(-1, 1, PIECES, PIECES)))))
            return pictures.mean(dim=(2, 3))
        hidden: Tensor
        if body == "lstm":
            hidden = self.entry(given.view(-1, PIECES, PIECES))[0][:, -1]
        elif body == "attention":
            hidden = self.entry(given.view(-1, PIECES, PIECES))
        elif body == "table":
            hidden = self.entry(given).sum(dim=1)
        else:
            hidden = self.entry(given)
        first: Tensor = self.dropout(torch.tanh(norm(hidden)))
        return first


class _Attention(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(PIECES, width)
        self.block = nn.TransformerEncoderLayer(
            # without bias: that of keys has no effect either
            width,
            2,
            2 * width,
            dropout,
            F.gelu,
            batch_first=True,
            norm_first=True,
            bias=False,
        )

    def forward(self, given: Tensor) -> Tensor:
        mixed: Tensor = self.block(self.widen(given)).mean(dim=1)
        return mixed


def make_model(program: Program) -> Network:
    """The network as it is before training."""
    before = torch.get_rng_state()
    torch.manual_seed(program.seed)
    model = Network(program)
    torch.set_rng_state(before)
    return model.double() if program.double else model


@cache
def make_data(program: Program, test: bool = False) -> Tensors:
    """(inputs, …, numbers of the samples, target), with some noise so that the loss does not go to zero."""
    count = program.tests if test else program.samples
    generator = torch.Generator().manual_seed(1000 * program.seed + test)
    features = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
    labels = (features[:, :CLASSES] + 0.4 * torch.randn(count, CLASSES, generator=generator)).argmax(1)
    # few of the rows of a table are ever touched, and those at its beginning
    codes = labels[:, None] + torch.randint(0, 3, (count, 2), generator=generator)
    numbers = torch.arange(count)
    masked = torch.rand(count, generator=generator) < 0.25
    features = features if program.double else features.float()
    inputs: Tensors = (codes,) if program.body == "table" else (features,)
    if program.inputs == 2:
        inputs = (*inputs, features[:, :PIECES] + 0.5)
    if program.loss in ("masked", "pair"):
        labels = torch.where(masked, IGNORED, labels)
    target = F.one_hot(labels, CLASSES).to(features.dtype) if program.loss == "squares" else labels
    return (*inputs, numbers, target)


def mean_loss(model: nn.Module, batch: Tensors) -> Tensor:
    """As a user writes it who has no module for it."""
    *inputs, target = batch
    return F.cross_entropy(model(*inputs), target)


def pair_loss(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """A mean over the samples that count."""
    *inputs, target = batch
    total = F.cross_entropy(model(*inputs), target, ignore_index=IGNORED, reduction="sum")
    return total, (target != IGNORED).sum()


def make_loss(program: Program) -> Any:
    """What is given to the Trainer."""
    kind = torch.float64 if program.double else torch.float32
    match program.loss:
        case "function":
            return mean_loss
        case "pair":
            return pair_loss
        case "squares":
            return nn.MSELoss()
        case "masked":
            return nn.CrossEntropyLoss(ignore_index=IGNORED)
        case "weighted":
            return nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0], dtype=kind))
        case "smooth":
            return nn.CrossEntropyLoss(label_smoothing=0.1)
        case "sum":
            return nn.CrossEntropyLoss(reduction="sum")
        case _:
            return nn.CrossEntropyLoss()


def make_optimizer(program: Program, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The user's factory."""
    rate = RATES[program.optimizer] / (program.batch if program.loss == "sum" else 1)
    given: Any = list(parameters)
    if program.groups == 2:
        given = [{"params": given[::2]}, {"params": given[1::2], "lr": rate / 2}]
    match program.optimizer:
        case "sgd":
            return torch.optim.SGD(given, lr=rate)
        case "momentum":
            return torch.optim.SGD(given, lr=rate, momentum=0.9, weight_decay=1e-3, nesterov=True)
        case "adam":
            return torch.optim.Adam(given, lr=rate, eps=1e-4)
        case "adamw":
            return torch.optim.AdamW(given, lr=rate, eps=1e-4)
        case "adafactor":
            return torch.optim.Adafactor(given, lr=rate)
        case "muon":
            return torch.optim.Muon(given, lr=rate)
        case "nadam":
            return torch.optim.NAdam(given, lr=rate, eps=1e-4)
        case _:
            return torch.optim.Rprop(given, lr=rate)
