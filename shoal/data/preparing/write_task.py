"""The last stage: a shard reads its pieces, in order, and becomes a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shoal.data.places import Place
from shoal.data.preparing.builtin.moments import Moments, is_number
from shoal.data.preparing.shuffle import Piece, merged
from shoal.data.preparing.spill import OWN, conform, read_schema
from shoal.data.preparing.step import column
from shoal.data.preparing.task import Result, Task
from shoal.data.shard_file import write_shard

GROUP_BYTES = 4 << 20
_GROUP_ROWS = (256, 65_536)


@dataclass(frozen=True)
class WriteTask(Task):
    """Writes `file` of the data set. `key` is the column whose smallest and largest value is noted."""

    dest: Place
    file: str
    pieces: tuple[Piece, ...]
    schemas: tuple[bytes, ...]
    schema: bytes
    group_rows: int
    key: str | None

    @property
    def about(self) -> str:
        return f"{self.name} ({self.dest / self.file})"

    def run(self) -> Result:
        schema = read_schema(self.schema)
        noted = _Noted(schema, self.key)
        shard = write_shard(self.dest / self.file, self._groups(schema, noted), schema)
        return {
            "rows": shard.rows,
            "shard": shard.model_dump() | {"keys": noted.keys},
            "statistics": {name: moments.to_plain() for name, moments in noted.moments.items()},
        }

    def _groups(self, schema: Any, noted: _Noted) -> Iterator[Any]:
        """Row groups of equal length, over the borders of pieces."""
        import pyarrow as pa

        rest = schema.empty_table()
        for piece in self.pieces:
            table = merged(piece, self.schemas)
            noted.add(table)
            table = conform(table.drop_columns([name for name in OWN if name in table.column_names]), schema)
            table = pa.concat_tables([rest, table]) if rest.num_rows else table
            whole = table.num_rows // self.group_rows * self.group_rows
            for start in range(0, whole, self.group_rows):
                yield table.slice(start, self.group_rows)
            rest = table.slice(whole)
            if rest.num_rows:
                rest = rest.combine_chunks()  # the piece itself can go
        if rest.num_rows:
            yield rest


class _Noted:
    """What the manifest says of the rows of a shard, taken down as they pass."""

    def __init__(self, schema: Any, key: str | None) -> None:
        self.moments = {field.name: Moments() for field in schema}
        self.keys: tuple[Any, Any] | None = None
        self._key = key

    def add(self, table: Any) -> None:
        for name in self.moments:
            values = column(table, name, "the statistics")
            if is_number(values.type):
                self.moments[name] += Moments.of(values)
            else:
                self.moments[name] += Moments(missing=values.null_count)
        if self._key is not None:
            self._add_keys(column(table, self._key, "the key"))

    def _add_keys(self, values: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            found = pc.min_max(values)
        except pa.ArrowNotImplementedError:
            return
        low, high = _plain(found["min"].as_py()), _plain(found["max"].as_py())
        if low is None or high is None:
            return
        self.keys = (low, high) if self.keys is None else (min(self.keys[0], low), max(self.keys[1], high))


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, int | float | str | None) else str(value)


def group_rows(rows: int, nbytes: int) -> int:
    """How many rows a row group has, so that it is of a size that is read at once."""
    low, high = _GROUP_ROWS
    return max(low, min(high, int(GROUP_BYTES * rows / max(1, nbytes))))
