"""Parquet: splits are runs of row groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shoal.data.formats.base import BadRecord, Format, FormatError, OnBad, Split, formats
from shoal.data.formats.batches import ROWS, as_batches
from shoal.data.formats.seeking import open_to_seek
from shoal.data.places import Entry, Place


@formats.add("parquet")
class Parquet(Format):
    """`Split.start` and `stop` count row groups, `BadRecord.offset` rows."""

    name = "parquet"
    endings = (".parquet", ".pq")

    def splits(self, entry: Entry, block_bytes: int) -> list[Split]:
        return [split for split, _ in self.counted(entry, block_bytes)]

    def counted(self, entry: Entry, block_bytes: int) -> list[tuple[Split, int]]:
        with opened(entry.place) as file:
            groups = [
                (group_bytes(file.metadata, group), file.metadata.row_group(group).num_rows)
                for group in range(file.metadata.num_row_groups)
            ]
        found: list[tuple[Split, int]] = []
        start, nbytes, rows = 0, 0, 0
        for group, (size, count) in enumerate(groups):
            nbytes, rows = nbytes + size, rows + count
            if nbytes >= block_bytes or group == len(groups) - 1:
                found.append((Split(entry.place, self.name, start, group + 1, nbytes), rows))
                start, nbytes, rows = group + 1, 0, 0
        return found

    def schema(self, entry: Entry) -> Any:
        with opened(entry.place) as file:
            return plain(file.schema_arrow)

    def read(self, split: Split, schema: Any, on_bad: OnBad) -> Iterator[Any]:
        with opened(split.place) as file:
            for name in schema.names:
                if name not in file.schema_arrow.names:
                    known = ", ".join(file.schema_arrow.names)
                    raise FormatError(f"{split.place} has no column {name!r}: it has {known}")
            row = sum(file.metadata.row_group(group).num_rows for group in range(split.start))
            for group in range(split.start, split.stop):
                yield from _read_group(file, split.place, group, row, schema, on_bad)
                row += file.metadata.row_group(group).num_rows


def _read_group(file: Any, place: Place, group: int, row: int, schema: Any, on_bad: OnBad) -> Iterator[Any]:
    import pyarrow as pa

    first, stop = row, row + file.metadata.row_group(group).num_rows
    batches = file.iter_batches(ROWS, row_groups=[group], columns=schema.names, use_threads=False)
    while row < stop:
        try:
            batch = next(batches, None)
            if batch is None:
                raise pa.ArrowInvalid(f"it has {row - first} rows, not {stop - first}")
            fitted = list(as_batches(pa.Table.from_batches([batch]), schema))
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file system's, not the file's
            rows = f"rows {row} to {stop - 1}"
            on_bad(BadRecord(str(place), row, f"{rows} of row group {group} cannot be read: {error}"))
            return
        yield from fitted
        row += batch.num_rows


@contextlib.contextmanager
def opened(place: Place) -> Iterator[Any]:
    """As a `pyarrow.parquet.ParquetFile`. Raises `FormatError` where it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        source = pa.OSFile(place.path) if place.is_local and place.exists() else open_to_seek(place)
        stack.enter_context(source)
        try:
            file = pq.ParquetFile(source, pre_buffer=not place.is_local, page_checksum_verification=True)
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise FormatError(f"{place} is no Parquet file, or it is damaged or cut off: {error}") from None
        yield stack.enter_context(file)


def group_bytes(metadata: Any, group: int) -> int:
    """What has to be read of the file for a row group."""
    found = metadata.row_group(group)
    return sum(found.column(column).total_compressed_size for column in range(found.num_columns))


def plain(schema: Any) -> Any:
    """Without what other programs have noted in it, by which files of the same columns would differ."""
    noted = {key: value for key, value in (schema.metadata or {}).items() if not key.startswith((b"pandas", b"org."))}
    return schema.with_metadata(noted or None)
