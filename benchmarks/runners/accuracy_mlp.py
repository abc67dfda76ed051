"""The MLP of the slow links on all of CIFAR-10: the script that `shoal train` and `shoal join` run.

shoal train benchmarks/runners/accuracy_mlp.py --workers 2 -- --data DIR --epochs 4
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import shoal
from benchmarks import images, workloads

TRAINING, TEST = 50_000, 10_000


def samples(directory: Path, file: str, count: int) -> tuple[Tensor, Tensor]:
    x, y = images.cifar10(directory, count, file)
    return torch.from_numpy(x), torch.from_numpy(y)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    arguments = parser.parse_args()
    shoal.Trainer(
        model=workloads.mlp,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
        schedule=shoal.schedules.Cosine(total=f"{arguments.epochs} epochs"),
        train=samples(arguments.data, "train.parquet", TRAINING),
        test=samples(arguments.data, "test.parquet", TEST),
        global_batch=128,
        epochs=arguments.epochs,
    ).fit()


if __name__ == "__main__":
    main()
