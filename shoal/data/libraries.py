"""Data of pandas, pyarrow and Hugging Face `datasets`, recognised without importing what nobody has imported."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from shoal.core.errors import ConfigError
from shoal.core.order import Indices
from shoal.data.samples import SampleSource
from shoal.data.source import Batch, Source


def open_of_library(data: object, name: str) -> Source | None:
    """The source for `data` if one of these libraries made it."""
    from shoal.data.columns import ColumnSource
    from shoal.data.frames import columns_of_arrow, columns_of_frame

    if _is(data, "pandas", "DataFrame"):
        return ColumnSource(columns_of_frame(data, name), name)
    if _is(data, "pyarrow", "Table", "RecordBatch"):
        return ColumnSource(columns_of_arrow(data, name), name)
    if _is(data, "datasets", "Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict"):
        return _open_hugging_face(data, name)
    return None


def _is(data: object, library: str, *kinds: str) -> bool:
    """Whether `data` is an instance of one of the library's classes, which it can only be once that is imported."""
    module = sys.modules.get(library)
    return any(isinstance(data, getattr(module, kind, ())) for kind in kinds)


def formatted(data: Any) -> Any:
    """A stream that gives tensors where it is one of Hugging Face."""
    return data.with_format("torch") if _is(data, "datasets", "IterableDataset") else data


def _open_hugging_face(data: Any, name: str) -> Source:
    from shoal.data.mapped import MappedSource
    from shoal.data.streams import StreamSource

    if _is(data, "datasets", "DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(map(repr, data)) or "none"
        raise ConfigError(f"the {name} data is a {type(data).__name__}: give one of its splits ({splits})")
    if _is(data, "datasets", "IterableDataset"):
        return StreamSource(formatted(data), name)
    if data.format["type"] == "custom":  # the user's own function, which may draw
        return MappedSource(data, name)
    return HuggingFaceSource(data, name)


class HuggingFaceSource(SampleSource):
    """Samples are dicts as the library makes them for PyTorch: tensors for numbers and for decoded images (uint8,
    [channels, height, width]), and text. All samples of a batch are read at once. Nothing is drawn."""

    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(dataset, name)
        chosen = dataset.format
        self._dataset = (
            dataset if chosen["type"] == "torch" else dataset.with_format("torch", columns=chosen["columns"])
        )

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
        try:
            return dict(self._dataset[indices.tolist()])
        except Exception as error:
            error.add_note(f"while reading {len(indices)} samples of the {self._name} data, the first {indices[0]}")
            raise
