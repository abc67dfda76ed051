"""What updates that are old cost, by age, momentum and learning rate, without any process: the digits example, each
gradient computed with the parameters of so many updates before.

    .venv/bin/python benchmarks/staleness.py            # all of it, half a minute
    .venv/bin/python benchmarks/staleness.py --quick
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections import deque

import torch
from torch import nn

import shoal

AGES = (0, 1, 2, 3)
CASES = {  # momentum, learning rate, damping
    "as in the example: momentum 0.9, rate 0.1": (0.9, 0.1, False),
    "damped by 1 / (1 + age), as strategy async does": (0.9, 0.1, True),
    "momentum 0.9, rate 0.015": (0.9, 0.015, False),
    "momentum 0.5, rate 0.1": (0.5, 0.1, False),
    "no momentum, rate 0.3": (0.0, 0.3, False),
    "no momentum, rate 0.1": (0.0, 0.1, False),
}


def accuracy(age: int, momentum: float, rate: float, damping: bool, seed: int, epochs: int = 10) -> float:
    """On the test digits, after training with gradients of this age."""
    torch.manual_seed(seed)
    inputs, labels = shoal.data.digits("train")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    reader, before = copy.deepcopy(model), deque([copy.deepcopy(model.state_dict())], maxlen=age + 1)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs)).split(128):
            reader.load_state_dict(before[0])
            reader.zero_grad()
            nn.functional.cross_entropy(reader(inputs[batch]), labels[batch]).backward()
            for own, read in zip(model.parameters(), reader.parameters(), strict=True):
                own.grad = read.grad
            optimizer.param_groups[0]["lr"] = rate / len(before) if damping else rate
            optimizer.step()
            before.append(copy.deepcopy(model.state_dict()))
    inputs, labels = shoal.data.digits("test")
    with torch.no_grad():
        return float((model(inputs).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    seeds, epochs = ((0,), 1) if quick else ((0, 1, 2), 10)
    for name, (momentum, rate, damping) in CASES.items():
        found = [[accuracy(age, momentum, rate, damping, seed, epochs) for seed in seeds] for age in AGES]
        means = {str(age): round(statistics.mean(ones), 3) for age, ones in zip(AGES, found, strict=True)}
        print(json.dumps({"case": name, "accuracy by age": means}), flush=True)


if __name__ == "__main__":
    main()
