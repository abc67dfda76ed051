"""Whether files have the same columns, and what to say where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from shoal.data.formats.base import Format, FormatError
from shoal.data.places import Entry

_LOOKERS_NEAR, _LOOKERS_FAR = 1, 16  # files looked at together: for remote ones it is the waiting that takes the time


def agree(format: Format, entries: Sequence[Entry]) -> Any:  # noqa: A002 - it is one
    """The schema of all `entries`. Where it is a guess, whole numbers here and fractions there are fractions, and a
    column that is empty here is what it is there."""
    import pyarrow as pa

    assert entries, "a schema of no files was asked for"
    lookers = _LOOKERS_NEAR if entries[0].place.is_local else _LOOKERS_FAR
    with ThreadPoolExecutor(min(lookers, len(entries)), thread_name_prefix="shoal-schema") as pool:
        schemas = list(pool.map(format.schema, entries))
    common = schemas[0]
    for entry, schema in zip(entries[1:], schemas[1:], strict=True):
        common = merge(common, schema, (str(entries[0].place), str(entry.place)), guesses=format.guesses)
    if format.guesses and all(field.type == pa.null() for field in common):
        others = "" if len(entries) == 1 else f" and {len(entries) - 1} more like it"
        raise FormatError(f"{entries[0].place} has no records{others}: it has a header at most")
    return settle(common) if format.guesses else common


def merge(first: Any, second: Any, names: tuple[str, str], *, guesses: bool) -> Any:
    """A schema that holds for both. The order of columns may differ: they are read by name. Raises `FormatError` that
    states the first difference between the two, called by `names`."""
    import pyarrow as pa

    fields = []
    for field in first:
        index = second.get_field_index(field.name)
        if index < 0:
            _refuse(f"{names[0]} has a column {field.name!r}, {names[1]} has not")
        other = second.field(index)
        kind = field.type if field.type == other.type else None
        if kind is None and guesses:
            kind = _common_type(field.type, other.type)
        if kind is None:
            _refuse(f"column {field.name!r} is {field.type} in {names[0]} and {other.type} in {names[1]}")
        fields.append(pa.field(field.name, kind, field.nullable or other.nullable, field.metadata))
    for field in second:
        if first.get_field_index(field.name) < 0:
            _refuse(f"{names[1]} has a column {field.name!r}, {names[0]} has not")
    return pa.schema(fields, first.metadata)


def _refuse(difference: str) -> NoReturn:
    raise FormatError(f"the files differ: {difference}. Give files of one schema, or prepare each kind by itself")


def _common_type(one: Any, other: Any) -> Any | None:
    from pyarrow import types

    if types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if {str(one), str(other)} == {"int64", "double"}:
        return one if types.is_floating(one) else other
    return None


def settle(schema: Any) -> Any:
    """A guess in which columns of which nothing was seen are text."""
    import pyarrow as pa

    return pa.schema(
        [field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema], schema.metadata
    )
