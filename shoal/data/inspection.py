"""A look at data that nobody has prepared: how much there is, of what, and what the first of it is like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.formats import BadRecord, Found, find, read_all
from shoal.data.places import Place
from shoal.data.source import Source

_LOOKED_AT = 1000  # records, for what is said of columns
_SHOWN = 3
_COUNTED_BYTES = 64 << 20  # files of formats that do not know their number of records are read up to this size


@dataclass(frozen=True)
class ColumnSummary:
    """Of the records that were looked at. Numbers are None where the column has none."""

    name: str
    type: str
    missing: int  # empty, or NaN
    low: float | None = None
    mean: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Inspection:
    """`records` is None where counting them would mean to read too much. `looked_at` of them were read, of which
    `first` are shown."""

    what: str
    format: str
    files: int
    bytes: int
    records: int | None
    looked_at: int
    columns: tuple[ColumnSummary, ...]
    first: tuple[dict[str, Any], ...] = ()
    bad: tuple[BadRecord, ...] = field(default=())


def inspect_files(place: Place, format: str | None = None) -> Inspection:  # noqa: A002 - the word for it
    """What raw files hold. Raises a `UserError` that says what cannot be read."""
    import pyarrow as pa

    found = find(place, format)
    chosen = found[0][1]
    schema = chosen.common_schema([entry for entry, _ in found])
    bad: list[BadRecord] = []
    batches, rows = [], 0
    for batch in read_all(found, schema, bad.append, 1 << 20):
        batches.append(batch.slice(0, _LOOKED_AT - rows))
        rows += batches[-1].num_rows
        if rows == _LOOKED_AT:
            break
    table = pa.Table.from_batches(batches, schema)
    nbytes = sum(entry.nbytes for entry, _ in found)
    whole = rows < _LOOKED_AT
    return Inspection(
        str(place),
        chosen.name,
        len(found),
        nbytes,
        rows if whole else _count(found, schema, nbytes),
        rows,
        tuple(_summary(name, str(table.schema.field(name).type), table.column(name)) for name in schema.names),
        tuple(table.slice(0, _SHOWN).to_pylist()),
        tuple(bad),
    )


def inspect_source(what: str, source: Source) -> Inspection:
    """What a source gives to a model."""
    import numpy as np
    import pyarrow as pa

    count = min(len(source), _LOOKED_AT)
    from shoal.data.sample_schema import parts_of

    parts = parts_of(source.fetch(np.arange(count), 0, 0))
    columns = []
    for one, part in zip(source.schema, parts.values(), strict=True):
        kind = f"{one.type}{list(one.shape) if one.shape else ''}"
        columns.append(_summary(one.name, kind, pa.array(np.asarray(part).reshape(-1))))
    return Inspection(what, type(source).__name__, 0, 0, len(source), count, tuple(columns))


def _count(found: Sequence[Found], schema: Any, nbytes: int) -> int | None:
    counted = [format_.counted(entry, 64 << 20) for entry, format_ in found]
    if all(parts is not None for parts in counted):
        return sum(rows for parts in counted for _, rows in parts or ())
    if nbytes > _COUNTED_BYTES:
        return None
    import pyarrow as pa

    one = pa.schema([schema.field(0)])
    return sum(int(batch.num_rows) for batch in read_all(found, one, lambda bad: None))


def _summary(name: str, kind: str, values: Any) -> ColumnSummary:
    import pyarrow as pa

    from shoal.data.preparing.builtin.moments import Moments, is_number

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not is_number(values.type):
        return ColumnSummary(name, kind, values.null_count)
    moments = Moments.of(values)
    mean = moments.mean if moments.count else None
    return ColumnSummary(name, kind, moments.missing, moments.low, mean, moments.high)


def inspect(what: str) -> Inspection:
    """Of whatever `shoal.data.open` takes: a file, folder or pattern, here or elsewhere, or the name of a data set with
    its split. Raises a `UserError`."""
    from shoal.data.opening import is_name
    from shoal.data.opening import open as open_data

    if is_name(what):
        if ":" not in what:
            raise ConfigError(
                f"{what!r} is the name of a data set: say which split, e.g. shoal data inspect {what}:train"
            )
        return inspect_source(what, open_data(what))
    return inspect_files(Place.of(what))
