"""Records of raw files as rows in memory, from which batches are made."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from shoal.core.errors import UserError
from shoal.data.formats.base import BadRecord, FormatError, Split, format_named
from shoal.data.shards.columns import Column, Decode, Values, choose_columns, model_dtype, values_of
from shoal.data.shards.images import decode_image, require_decoders

_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "bmp")
_ARRAYS = ("npy",)
_KEYS = ("__key__",)  # names of samples, which no model wants


class BadRecordError(UserError):
    """A record of a raw file cannot be read."""


@dataclass(frozen=True)
class Wanted:
    """What a sample is made of. `schema` has the columns that must be read for it."""

    schema: Any
    columns: tuple[Column, ...]

    @classmethod
    def of(
        cls, schema: Any, columns: Sequence[str | Sequence[str]] | None, decode: Mapping[str, Decode] | None, where: str
    ) -> Wanted:
        """`columns` as `shoal.data.open` has them. Raises `ConfigError`."""
        import pyarrow as pa

        known = {name: made for name in schema.names if (made := _decoder(name)) is not None}
        if columns is None:
            columns = [name for name in schema.names if name not in _KEYS]
        chosen = choose_columns(schema, columns, {**known, **(decode or {})}, where)
        if any(column.decode is decode_image for column in chosen):
            require_decoders()
        names = dict.fromkeys(name for column in chosen for name in column.names)
        return cls(pa.schema([schema.field(name) for name in names], schema.metadata), chosen)


def _decoder(name: str) -> Decode | None:
    """By the name of a column, or by the ending that it is named after."""
    last = name.rpartition(".")[2].lower()
    return decode_image if last in _IMAGES else _decode_array if last in _ARRAYS else None


def _decode_array(data: Any) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def read_splits(splits: Sequence[Split], wanted: Wanted) -> tuple[list[Values], list[int]]:
    """The rows of these splits, one after the other, and how many each has. Raises `BadRecordError` for the first that
    cannot be read."""
    import pyarrow as pa

    read = [list(format_named(split.format).read(split, wanted.schema, refuse)) for split in splits]
    batches = [batch for part in read for batch in part]
    table = pa.Table.from_batches(batches, wanted.schema)
    if not batches:
        table = wanted.schema.empty_table()
    try:
        table = table.combine_chunks()
        values = [_for_models(values_of(table, column), column) for column in wanted.columns]
        return values, [sum(batch.num_rows for batch in part) for part in read]
    except ValueError as error:
        where = splits[0].place if len({split.place for split in splits}) == 1 else f"{splits[0].place} and others"
        raise FormatError(f"{where}: {error}") from None


def _for_models(values: Values, column: Column) -> Values:
    return values.astype(model_dtype(values, column), copy=False) if isinstance(values, np.ndarray) else values


def refuse(bad: BadRecord) -> NoReturn:
    told = f": {bad.text}" if bad.text else ""
    raise BadRecordError(
        f"{bad.file} has a bad record at {bad.offset}: {bad.reason}{told}\nMend it, or leave such records out with "
        "`shoal prepare … --bad-records reject`"
    )


def nbytes_of(values: Sequence[Values]) -> int:
    return sum(one.nbytes for one in values)


def count_of(values: Sequence[Values]) -> int:
    first = values[0]
    return len(first) if isinstance(first, np.ndarray) else len(first.starts)
