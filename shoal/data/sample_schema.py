"""What a sample looks like: its parts, by name, type and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class SampleField:
    """One part of a sample. `name` is the column or key it comes from, or its position; `shape` is without a batch."""

    name: str
    type: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{list(self.shape) if self.shape else ''}"


def schema_of(batch: Any, names: Sequence[str] | None) -> tuple[SampleField, ...]:
    """The fields of the samples of `batch`; `names` are those of its parts, where they have some of their own."""
    parts = parts_of(batch)
    if names is not None and len(names) == len(parts):
        parts = dict(zip(names, parts.values(), strict=True))
    return tuple(_field(name, part) for name, part in parts.items())


def parts_of(batch: Any) -> dict[str, Any]:
    """The parts of a batch by name or position."""
    if isinstance(batch, Mapping):
        return {str(name): part for name, part in batch.items()}
    if isinstance(batch, tuple | list) and any(isinstance(part, Tensor) for part in batch):
        return {str(position): part for position, part in enumerate(batch)}
    return {"0": batch}


def sample_of(batch: Any) -> Any:
    """The first sample of a batch, which is put together as the batch is."""
    if isinstance(batch, Mapping):
        return {name: sample_of(part) for name, part in batch.items()}
    if isinstance(batch, tuple | list) and any(isinstance(part, Tensor | tuple | list | Mapping) for part in batch):
        return type(batch)(sample_of(part) for part in batch)
    if isinstance(batch, Tensor | Sequence) and not isinstance(batch, str | bytes):
        return batch[0]
    return batch


def _field(name: str, part: Any) -> SampleField:
    if isinstance(part, Tensor):
        return SampleField(name, str(part.dtype).removeprefix("torch."), tuple(part.shape[1:]))
    one = sample_of(part)
    return SampleField(name, type(one).__name__, ())


def describe_non_finite(batch: Any, names: Sequence[str] | None, samples: Sequence[int]) -> str | None:
    """Which part of which of `samples` is not a finite number, in words; None where all are."""
    parts = parts_of(batch)
    labels = names if names is not None and len(names) == len(parts) else [f"part {name}" for name in parts]
    for label, part in zip(labels, parts.values(), strict=True):
        if not isinstance(part, Tensor) or not part.is_floating_point() or len(part) != len(samples):
            continue
        bad = ~torch.isfinite(part).reshape(len(part), -1).all(dim=1)
        if bool(bad.any()):
            rows = bad.nonzero().flatten().tolist()
            kind = "NaN" if bool(part[rows[0]].isnan().any()) else "an infinite value"
            more = f" (and {len(rows) - 1} more of that step)" if len(rows) > 1 else ""
            return f"{label} of the data has {kind} in sample {samples[rows[0]]}{more}"
    return None
