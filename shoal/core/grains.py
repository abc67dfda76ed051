"""Law 1: a global batch is cut, in order, into grains; who computes which grains is a pure function.

A *grain* is the smallest unit of computing. Its size does not depend on the number of workers, so what looks at a
batch (batch normalisation) and what draws per batch (dropout) does not either.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Grain:
    """Samples ``[start, stop)`` of an epoch's order: grain `number` of its global batch."""

    number: int
    start: int
    stop: int

    @property
    def samples(self) -> int:
        return self.stop - self.start


def cut(start: int, stop: int, grain_size: int) -> tuple[Grain, ...]:
    """Cut positions ``[start, stop)`` into grains of `grain_size`; the last may be smaller."""
    assert grain_size >= 1
    return tuple(
        Grain(number, at, min(at + grain_size, stop)) for number, at in enumerate(range(start, stop, grain_size))
    )


def shares(count: int, weights: Sequence[float]) -> tuple[range, ...]:
    """Divide grains ``0 .. count-1`` among workers in proportion to `weights`, as contiguous ranges in rank order.

    Largest remainder: each share differs from the exact proportion by less than one grain, ties go to the lower
    rank, and the shares add up to `count` whatever the weights are.
    """
    total = float(sum(weights))
    if not weights or total <= 0 or min(weights) < 0:
        raise ConfigError(f"weights={list(weights)}: the shares of workers must be >= 0 and not all zero")
    exact = [count * weight / total for weight in weights]
    sizes = [int(part) for part in exact]
    by_remainder = sorted(range(len(weights)), key=lambda rank: (sizes[rank] - exact[rank], rank))
    for rank in by_remainder[: count - sum(sizes)]:
        sizes[rank] += 1
    borders = [0]
    for size in sizes:
        borders.append(borders[-1] + size)
    return tuple(range(a, b) for a, b in itertools.pairwise(borders))
