"""Samples that lie in memory as tensors: sample i is row i of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import ConfigError
from shoal.core.order import Indices
from shoal.data.source import Batch, Source

Rows = Tensor | npt.NDArray[np.generic]


class TensorSource(Source):
    """Batches are tuples of rows, or rows alone where a single tensor was given. Nothing is drawn.

    The tensors are not copied: they must not change while they are a source. Arrays share their memory where
    they can be written to.
    """

    def __init__(self, data: Rows | Sequence[Rows], name: str) -> None:
        self._single = isinstance(data, torch.Tensor | np.ndarray)
        parts: Sequence[Rows] = [data] if isinstance(data, torch.Tensor | np.ndarray) else data
        self._tensors = tuple(as_rows(part, f"array {number} of the {name} data") for number, part in enumerate(parts))
        lengths = [tensor.shape[0] for tensor in self._tensors]
        if len(set(lengths)) > 1:
            raise ConfigError(
                f"the tensors of the {name} data have {', '.join(map(str, lengths))} rows: they must have "
                "the same first dimension, one row for each sample"
            )
        self._samples = lengths[0]

    def __len__(self) -> int:
        return self._samples

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        # a copy, even where rows lie side by side: a model that works in place must not change the data
        rows = torch.tensor(indices)
        batch = tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self._tensors)
        return batch[0] if self._single else batch


def as_rows(part: Rows, what: str) -> Tensor:
    """A tensor whose first dimension counts samples; `what` names it in errors."""
    if isinstance(part, np.ndarray):
        try:
            part = torch.from_numpy(part if part.flags.writeable else part.copy())
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{what} cannot become a tensor: {error}") from None
    if part.dim() == 0:
        raise ConfigError(f"{what} is a single number: its rows must be the samples")
    return part.detach()
