"""What is asked of a source in the course of a run, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.core.order import Indices

Batch = Any  # one collated batch: a tensor, or a tuple, list or dict of batches


@dataclass(frozen=True)
class Request:
    """Positions ``[start, stop)`` of the order of `epoch`."""

    epoch: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        assert self.epoch >= 0
        assert 0 <= self.start < self.stop, f"{self} asks for nothing"


@dataclass(frozen=True)
class Loaded:
    """What was asked for: the samples' numbers, in order, and the samples. Where some could not be read and are to be
    left out, they are missing in both; `batch` is None where none is left."""

    request: Request
    indices: Indices
    batch: Batch
