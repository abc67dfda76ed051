"""A small GPT that learns to write, character by character, from any text file.

    python shakespeare_gpt.py --data input.txt --epochs 5
    shoal train shakespeare_gpt.py --workers 2 -- --data input.txt --epochs 5

The last tenth of the text is kept for testing. The loss is in nats per character.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import shoal

NO_TARGET = -100  # what cross_entropy ignores


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model. `context` is the number of characters it can look back on."""

    vocabulary: int
    context: int = 128
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.1


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """A text cut into windows of `context` characters; the target of each character is the next one.

    Every character but the first is a target exactly once an epoch. The last window is filled up with
    characters that have no target.
    """

    def __init__(self, text: Tensor, context: int) -> None:
        if len(text) < 2:
            raise ValueError(f"a text of {len(text)} characters has nothing to predict: give at least 2")
        self.context = context
        self.windows = -(-(len(text) - 1) // context)
        missing = self.windows * context + 1 - len(text)
        self.inputs = F.pad(text, (0, missing), value=0)
        self.targets = F.pad(text, (0, missing), value=NO_TARGET)

    def __len__(self) -> int:
        return self.windows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.context
        stop = start + self.context
        return self.inputs[start:stop], self.targets[start + 1 : stop + 1]


class Attention(nn.Module):
    """Each character looks at itself and those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.mix = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.mix(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0  # the function does not know of eval()
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        projected: Tensor = self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return projected


class Layer(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.think = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        changed: Tensor = x + self.dropout(self.think(self.norm2(x)))
        return changed


class GPT(nn.Module):
    """Characters in, logits of the next characters out. Input and output embedding are one parameter."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        if config.width % config.heads:
            raise ValueError(f"width={config.width} does not divide by heads={config.heads}")
        self.characters = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.Sequential(*(Layer(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.predict = nn.Linear(config.width, config.vocabulary, bias=False)
        self.predict.weight = self.characters.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # what adds to the stream is made smaller, so that the sum over layers is not
                smaller = name.endswith(("project.weight", "think.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * config.layers) ** 0.5 if smaller else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        x = self.dropout(self.characters(text) + self.places(places))
        logits: Tensor = self.predict(self.norm(self.layers(x)))
        return logits


def next_character_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss as (sum, weight): windows with fewer targets count for less, whoever computes them."""
    text, targets = batch
    logits = model(text)
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET, reduction="sum")
    return total, (targets != NO_TARGET).sum()


def read_text(file: Path, limit: int | None = None) -> tuple[Tensor, str]:
    """Return the characters of a file as numbers, and the alphabet that they count in."""
    text = file.read_text(encoding="utf-8")[:limit]
    alphabet = "".join(sorted(set(text)))
    number = {character: index for index, character in enumerate(alphabet)}
    return torch.tensor([number[character] for character in text]), alphabet


def adamw(params: object) -> torch.optim.Optimizer:
    """Weight decay for matrices only: not for biases, nor for the gains of layer norms."""
    parameters: list[nn.Parameter] = list(params)  # type: ignore[call-overload]
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    others = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a character-level GPT on a text file.")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="a text file (UTF-8)")
    parser.add_argument("--epochs", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N characters only, for a quick look")
    parser.add_argument("--context", type=int, default=128, help="characters in a window (default: %(default)s)")
    parser.add_argument("--global-batch", type=int, default=64, help="windows to a step (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.1, help="(default: %(default)s)")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        parser.error(f"--data {arguments.data}: there is no such file. Give a text file (UTF-8) of your choice")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    text, alphabet = read_text(arguments.data, arguments.limit)
    config = GPTConfig(
        vocabulary=len(alphabet),
        context=arguments.context,
        layers=arguments.layers,
        heads=arguments.heads,
        width=arguments.width,
        dropout=arguments.dropout,
    )
    border = len(text) * 9 // 10
    trainer = shoal.Trainer(
        model=lambda: GPT(config),
        loss=next_character_loss,
        optimizer=adamw,
        schedule=shoal.schedules.Cosine(total=f"{arguments.epochs} epochs", warmup=f"{arguments.epochs / 20:g} epochs"),
        train=Windows(text[:border], config.context),
        test=Windows(text[border:], config.context),
        global_batch=arguments.global_batch,
        epochs=arguments.epochs,
        clip={"norm": 1.0},
    )
    trainer.fit()


if __name__ == "__main__":
    main()
