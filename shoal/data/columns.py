"""Samples that lie in memory as named columns, and how columns become the tuples that a loss module takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import ConfigError, nearest
from shoal.core.order import Indices
from shoal.data.source import Batch, Source, open_source
from shoal.data.tensors import Rows, TensorSource, as_rows
from shoal.data.wrapping import Wrapping

Choice = str | Sequence[str] | None


class ColumnSource(Source):
    """Samples and batches are dicts. Nothing is drawn. Tensors and arrays are not copied: they must not change."""

    def __init__(self, columns: Mapping[Any, Rows], name: str) -> None:
        self._name = name
        self._columns = {key: _as_column(key, column, name) for key, column in columns.items()}
        if not self._columns:
            raise ConfigError(f"the {name} data has no columns: give at least one")
        lengths = {key: len(column) for key, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key!r} has {length}" for key, length in list(lengths.items())[:6])
            raise ConfigError(f"the columns of the {name} data differ in length: {told} rows")
        self._samples = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._samples

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        rows = torch.tensor(indices)
        return {key: column.index_select(0, rows.to(column.device)) for key, column in self._columns.items()}

    def pick(self, columns: Sequence[Choice]) -> Source:
        """What `select` gives, put together once and not at each fetch."""
        named = {key for one in columns if one is not None for key in ([one] if isinstance(one, str) else one)}
        rest = [key for key in self._columns if key not in named]
        chosen = [rest if one is None else one for one in columns]
        return TensorSource(_pick(self._columns, chosen, self._name), self._name)


def _as_column(key: Any, column: Rows, name: str) -> Tensor:
    what = f"column {key!r} of the {name} data"
    if not isinstance(column, torch.Tensor | np.ndarray):
        raise ConfigError(f"{what} is a {type(column).__name__}: give a tensor or an array with a row for each sample")
    if isinstance(column, np.ndarray):
        if column.dtype.kind in "OSUMmV":
            raise ConfigError(
                f"{what} is of type {column.dtype}, not of numbers: leave it out, or turn it into numbers first"
            )
        column = _signed(column, what)
    return as_rows(column, what)


def _signed(column: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """Torch has next to no operations for the wider unsigned integers."""
    if column.dtype.kind != "u" or column.dtype.itemsize == 1:
        return column
    if column.dtype.itemsize == 8 and column.size and int(column.max()) >= 2**63:
        raise ConfigError(f"{what} has numbers past 2**63, which no tensor holds: hash or subtract them first")
    return column.astype(np.int64)


def select(data: object, *columns: Choice) -> Source:
    """Samples that are tuples of these columns, of data whose samples are dicts: a loss module such as
    `nn.CrossEntropyLoss()` is given the last of them as its target, and the model the others.

    A name stands for that column. A list of names stands for these columns side by side, as float32 of shape
    [samples, width]; None for all columns that are not named, side by side, of data in memory. Floats are float32.
    """
    if not columns:
        raise ConfigError("select(...) was given no columns: name them, the target last")
    source = open_source(data, "selected")
    if isinstance(source, ColumnSource):
        return source.pick(columns)
    chosen = [one for one in columns if one is not None]
    if len(chosen) < len(columns):
        raise ConfigError("select(..., None, ...) is for data in memory: name the columns")
    return _Selected(source, chosen)


class _Selected(Wrapping):
    def __init__(self, source: Source, columns: Sequence[str | Sequence[str]]) -> None:
        super().__init__(source)
        self._chosen = columns

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(one if isinstance(one, str) else ", ".join(one) for one in self._chosen)

    def change(self, batch: Batch, indices: Indices, epoch: int, seed: int) -> Batch:
        if not isinstance(batch, Mapping):
            raise ConfigError(
                f"select(..., {self._chosen[-1]!r}): the samples of the data are no dicts but give a batch of type "
                f"{type(batch).__name__}: use the data as it is"
            )
        return _pick(batch, self._chosen, "selected")


def _pick(columns: Mapping[Any, Any], chosen: Sequence[str | Sequence[str]], name: str) -> tuple[Tensor, ...]:
    return tuple(_one_or_more(columns, one, name) for one in chosen)


def _one_or_more(columns: Mapping[Any, Any], chosen: str | Sequence[str], name: str) -> Tensor:
    if isinstance(chosen, str):
        column = _find(columns, chosen, name)
        return column.float() if column.is_floating_point() else column
    if not chosen:
        raise ConfigError(f"no column of the {name} data is left to be put side by side: name the columns")
    found = [_find(columns, key, name) for key in chosen]
    return torch.cat([column.reshape(len(column), -1).float() for column in found], dim=1)


def _find(columns: Mapping[Any, Any], key: str, name: str) -> Tensor:
    if key not in columns:
        raise ConfigError(f"the {name} data has no column {key!r}: {nearest(str(key), map(str, columns))}")
    column = columns[key]
    if not isinstance(column, Tensor):
        raise ConfigError(
            f"column {key!r} of the {name} data cannot be selected, for it gives no tensor (strings, or samples of "
            "different shapes)"
        )
    return column
