"""Exact evaluation: the test set is cut independently of the number of workers, sums and weights are added up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.comm.group import Group
from shoal.core.grains import shares
from shoal.data.loader import Loader, Request
from shoal.data.source import Source
from shoal.strategies.base import Strategy

AUTO_BATCH = 256


def evaluate(
    strategy: Strategy[Any], replica: Any, source: Source, batch: int, names: Sequence[str], group: Group,
    weights: Sequence[float], tick: Callable[[], None] = lambda: None,
) -> dict[str, float]:  # fmt: skip
    """Return the mean of the loss and of each metric over all samples of `source`. Collective. `tick` is called after
    each batch: who watches must see that it goes on."""
    samples = len(source)
    cuts = [Request(0, start, min(start + batch, samples)) for start in range(0, samples, batch)]
    mine = shares(len(cuts), weights)[group.rank]
    sums = torch.zeros(len(names), 2, dtype=torch.float64)
    with contextlib.closing(Loader(source, seed=0, shuffle=False).stream(cuts[mine.start : mine.stop])) as stream:
        for loaded in stream:
            if len(loaded.indices):
                result = strategy.evaluate(replica, loaded.batch)
                sums += torch.tensor([result[name] for name in names], dtype=torch.float64)
            tick()
    group.all_reduce(sums, "adding up the evaluation")
    return {
        f"test_{name}": total / weight if weight else total
        for name, (total, weight) in zip(names, sums.tolist(), strict=True)
    }
