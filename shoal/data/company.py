"""Whether what is done to many rows at once is done to each of them alone: tried on one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_TOLERANCE = 1e-3  # rounding may be other in a larger batch; what looks at other rows makes far more of a difference


def first_of(batch: Any) -> Any:
    """The first row of a collated batch, as a batch of one that shares no memory with it."""
    if isinstance(batch, Mapping):
        return {key: first_of(part) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(first_of(part) for part in batch)
    return batch[:1].clone() if isinstance(batch, Tensor) else batch[:1]


def is_first_of(row: Any, batch: Any) -> bool:
    """Whether a batch of one is the first row of `batch`, up to rounding. What is no tensor is not looked at."""
    if isinstance(row, Mapping):
        return isinstance(batch, Mapping) and all(is_first_of(row[key], batch.get(key)) for key in row)
    if isinstance(row, tuple):
        return isinstance(batch, tuple) and all(is_first_of(one, other) for one, other in zip(row, batch, strict=False))
    if not isinstance(row, Tensor):
        return True
    if not isinstance(batch, Tensor) or row.shape[1:] != batch.shape[1:] or row.dtype != batch.dtype:
        return False
    if not row.is_floating_point():
        return torch.equal(row, batch[:1])
    return torch.allclose(row, batch[:1], rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
