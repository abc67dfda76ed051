"""Samples that lie in memory as named columns, and how columns become the (input, target) that a loss module takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError, nearest
from shoal.core.order import Indices, Order
from shoal.data.source import Batch, Source, open_source
from shoal.data.tensors import Rows, as_rows


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

    def pick(self, inputs: str | Sequence[str] | None, target: str) -> Source:
        """What `select` gives, put together once and not at each fetch."""
        from shoal.data.tensors import TensorSource

        if inputs is None:
            inputs = [key for key in self._columns if key != target]
        return TensorSource(_pick(self._columns, inputs, target, self._name), self._name)


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


def select(data: object, inputs: str | Sequence[str] | None, target: str) -> Source:
    """Samples ``(input, target)`` of data whose samples are dicts: what a loss module such as `nn.CrossEntropyLoss()`
    is given.

    `inputs` is the name of one column, which is passed on as it is, or a list of names: these columns are put side by
    side, as float32 of shape [samples, width]. None is all columns but the target, of data in memory. The target keeps
    its type, but for floats of other widths, which become float32 as the model's output is.
    """
    source = open_source(data, "selected")
    if isinstance(source, ColumnSource):
        return source.pick(inputs, target)
    if inputs is None:
        raise ConfigError("select(inputs=None) is for data in memory: name the input columns")
    return _Selected(source, inputs, target)


class _Selected(Source):
    def __init__(self, source: Source, inputs: str | Sequence[str], target: str) -> None:
        self._source, self._inputs, self._target = source, inputs, target

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, indices: Indices, epoch: int, seed: int) -> Batch:
        batch = self._source.fetch(indices, epoch, seed)
        if not isinstance(batch, Mapping):
            raise ConfigError(
                f"select(..., target={self._target!r}): the samples of the data are no dicts but give a batch of type "
                f"{type(batch).__name__}: use the data as it is"
            )
        return _pick(batch, self._inputs, self._target, "selected")

    def order(self, seed: int, shuffle: bool, batches: Batches | None = None) -> Order:
        return self._source.order(seed, shuffle, batches)

    @property
    def grouped(self) -> str | None:
        return self._source.grouped

    @property
    def digest(self) -> str | None:
        return self._source.digest


def _pick(columns: Mapping[Any, Any], inputs: str | Sequence[str], target: str, name: str) -> tuple[Tensor, Tensor]:
    chosen = [inputs] if isinstance(inputs, str) else list(inputs)
    for key in (*chosen, target):
        if key not in columns:
            raise ConfigError(f"the {name} data has no column {key!r}: {nearest(str(key), map(str, columns))}")
        if not isinstance(columns[key], Tensor):
            raise ConfigError(
                f"column {key!r} of the {name} data cannot be selected, for it gives no tensor (strings, or samples of "
                "different shapes)"
            )
    if not chosen:
        raise ConfigError(f"the {name} data has no column besides the target {target!r}: name the inputs")
    answer = columns[target]
    if answer.is_floating_point():
        answer = answer.float()
    if isinstance(inputs, str):
        return columns[inputs], answer
    return torch.cat([columns[key].reshape(len(answer), -1).float() for key in chosen], dim=1), answer
