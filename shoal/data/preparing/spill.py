"""Runs of rows on their way from one stage to the next: Arrow record batches in a file, any stretch of which can be
read by itself.

A spill is written atomically, in small batches whose places are noted, so that a stretch of rows is one read of a range
of bytes. The line by which a run is sorted is a column of it, `LINE`, and lies in a file of its own beside it, for
those who only look for a place in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shoal.data.places import Place
from shoal.data.unowned import Unowned

LINE = "__line"  # the column by which a run is sorted: hashes of keys, or keys
KEY = "__key"  # the key, where it is not a column of the data
OWN = (LINE, KEY)
_BATCH_BYTES = 128 << 10  # a stretch is read in whole batches: small ones waste little
_SMALLEST_BATCH = 4
_WRITTEN_BYTES = 1 << 20  # at once: what goes through Python should be large


@dataclass(frozen=True)
class Spill:
    """A file of record batches: after how many rows, and at which byte, each ends (`offsets` has one more: the first
    is where the first batch begins)."""

    place: Place
    ends: tuple[int, ...]
    offsets: tuple[int, ...]
    schema: bytes

    @property
    def rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def nbytes(self) -> int:
        return self.offsets[-1]

    def slice(self, start: int, stop: int) -> Slice:
        """Rows ``[start, stop)``, at least one."""
        assert 0 <= start < stop <= self.rows
        first, last = bisect_right(self.ends, start), bisect_left(self.ends, stop)
        skipped = self.ends[first - 1] if first else 0
        return Slice(self.place, self.offsets[first], self.offsets[last + 1], start - skipped, stop - start)

    def to_plain(self) -> dict[str, Any]:
        return {"name": self.place.name, "ends": self.ends, "offsets": self.offsets, "schema": self.schema.hex()}

    @classmethod
    def from_plain(cls, folder: Place, plain: dict[str, Any]) -> Spill:
        return cls(
            folder / plain["name"], tuple(plain["ends"]), tuple(plain["offsets"]), bytes.fromhex(plain["schema"])
        )


@dataclass(frozen=True, slots=True)  # there are as many as spills times pieces
class Slice:
    """Some rows of a spill: the bytes that hold them, how many rows to pass over there, and how many to take."""

    place: Place
    start: int
    stop: int
    skip: int
    rows: int

    def read(self, schema: Any) -> Any:
        """As a `pyarrow.Table`; `schema` is the spill's."""
        import pyarrow as pa

        data = pa.py_buffer(_read_range(self.place, self.start, self.stop))
        reader = pa.BufferReader(data)
        batches, rows = [], 0
        while rows < self.skip + self.rows:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(reader), schema)
            batches.append(batch)
            rows += batch.num_rows
        return pa.Table.from_batches(batches, schema).slice(self.skip, self.rows)


def write_spill(place: Place, table: Any) -> Spill:
    """Put a `pyarrow.Table` there."""
    import pyarrow as pa

    rows = max(_SMALLEST_BATCH, int(_BATCH_BYTES * table.num_rows / max(1, table.nbytes)))
    ends: list[int] = []
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        place.writing() as file,
        pa.BufferedOutputStream(pa.PythonFile(Unowned(file), "w"), _WRITTEN_BYTES) as sink,
        pa.ipc.new_stream(sink, table.schema, options=options) as writer,
    ):
        writer.write_batch(_empty(table.schema))  # the schema goes out before the first batch
        offsets = [sink.tell()]
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
            offsets.append(sink.tell())
            ends.append((ends[-1] if ends else 0) + batch.num_rows)
    return Spill(place, tuple(ends), tuple(offsets), table.schema.serialize().to_pybytes())


def read_schema(packed: bytes) -> Any:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(packed))


def read_slices(slices: Iterable[tuple[Slice, Any]], schema: Any) -> Any:
    """Rows of several spills (each with its own schema) one after the other, as a `pyarrow.Table` of `schema`."""
    import pyarrow as pa

    tables = [conform(piece.read(own), schema) for piece, own in slices]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def conform(table: Any, schema: Any) -> Any:
    """With the columns of `schema` in its order and types."""
    import pyarrow as pa

    if table.schema.equals(schema):
        return table
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _empty(schema: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _read_range(place: Place, start: int, stop: int) -> bytes:
    if not place.is_local:
        return place.read(start, stop)
    with open(place.path, "rb", buffering=0) as file:  # noqa: PTH123 - thousands of them: fsspec takes its time
        file.seek(start)
        return file.read(stop - start)
