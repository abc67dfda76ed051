"""Writing one shard: a Parquet file, and what the manifest says of it, known without reading it again."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Any

from shoal.core.places import Place
from shoal.data.manifest import RowGroup, Shard
from shoal.data.unowned import Unowned


class _Noted(Unowned):
    """A file that is written from its beginning to its end, and what went into it."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.sha256, self.crc32, self.position = hashlib.sha256(), 0, 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        super().write(view)
        self.sha256.update(view)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.position += len(view)
        return len(view)

    def tell(self) -> int:
        return self.position


def write_shard(
    place: Place, tables: Iterable[Any], schema: Any, *, keys: tuple[Any, Any] | None = None, compression: str = "zstd"
) -> Shard:
    """Write a Parquet file in which each of `tables` (`pyarrow.Table`s of `schema`, not empty) is one row group. It
    appears under its name when it is complete."""
    import pyarrow.parquet as pq

    groups: list[RowGroup] = []
    with place.writing() as file:
        noted = _Noted(file)
        # without dictionaries: on tables of numbers and words half the time to write, and a third smaller under zstd
        with pq.ParquetWriter(
            noted, schema, compression=compression, use_dictionary=False, write_page_checksum=True
        ) as writer:
            for table in tables:
                start, noted.crc32 = noted.position, 0
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                groups.append(RowGroup(rows=table.num_rows, start=start, stop=noted.position, crc32=noted.crc32))
    return Shard(
        file=place.name,
        rows=sum(group.rows for group in groups),
        bytes=noted.position,
        sha256=noted.sha256.hexdigest(),
        row_groups=tuple(groups),
        keys=keys,
    )
