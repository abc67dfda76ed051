"""Data of pandas, pyarrow and Hugging Face `datasets`, recognised without importing what nobody has imported."""

from __future__ import annotations

import sys
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.source import Source


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
    from shoal.data.hugging_face import HuggingFaceSource
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
