"""Map-style datasets of Hugging Face `datasets`: all samples of a batch are read at once."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import ConfigError
from shoal.core.order import Indices
from shoal.data.frames import numbers_of_arrow
from shoal.data.samples import SampleSource
from shoal.data.source import Batch


class HuggingFaceSource(SampleSource):
    """Samples are dicts as the library makes them for PyTorch: float32 and int64 for numbers, uint8 of shape [channels,
    height, width] for decoded images, text as it is. Nothing is drawn.

    Columns of numbers are taken from the Arrow table itself, which is ten times as quick as by the library.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(dataset, name)
        chosen = dataset.format
        self._names: list[str] = list(chosen["columns"])
        self._dataset = dataset
        self._own_types = chosen["format_kwargs"] if chosen["type"] == "torch" else {}
        schema = dataset.features.arrow_schema
        self._divide([key for key in self._names if _is_of_numbers(schema.field(key).type) and not self._own_types])

    def _divide(self, quick: list[str]) -> None:
        """Take these columns from the table, the others from the library."""
        self._quick, self._slow = quick, [key for key in self._names if key not in quick]
        self._table = self._dataset.with_format("arrow", columns=self._quick)
        self._library = self._dataset.with_format("torch", columns=self._slow, **self._own_types)

    def __len__(self) -> int:
        return len(self._dataset)

    def samples(self, indices: Indices, epoch: int, seed: int) -> list[Any]:
        columns = self._columns(indices)
        return [{key: column[row] for key, column in columns.items()} for row in range(len(indices))]

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        columns = self._columns(indices)
        for key, column in columns.items():
            if isinstance(column, list) and any(isinstance(value, Tensor) for value in column):
                raise ConfigError(
                    f"column {key!r} of the {self._name} data has samples that differ in shape: make them equal, by "
                    "map() of the dataset or by shoal.data.transform(per_sample=...), or leave the column out"
                )
        return columns

    def _columns(self, indices: Indices) -> dict[str, Any]:
        numbers = indices.tolist()
        try:
            found = self._numbers(numbers)
            if self._slow:
                found |= self._library[numbers]
        except Exception as error:
            error.add_note(f"while reading {len(indices)} samples of the {self._name} data, the first {indices[0]}")
            raise
        return {key: found[key] for key in self._names}

    def _numbers(self, rows: list[int]) -> dict[str, Any]:
        """The columns of numbers; one that has gaps, or lists of different lengths, is left to the library from now
        on."""
        found: dict[str, Any] = {}
        if self._quick:
            table = self._table[rows]
            for key in self._quick:
                with suppress(ConfigError):
                    found[key] = _as_tensor(numbers_of_arrow(table[key], key, self._name))
            if len(found) < len(self._quick):
                self._divide(list(found))
        return found


def _is_of_numbers(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_of_numbers(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _as_tensor(column: np.ndarray[Any, Any]) -> Tensor:
    types = {"f": np.float32, "i": np.int64, "u": np.int64}
    return torch.from_numpy(np.array(column, dtype=types.get(column.dtype.kind, column.dtype)))
