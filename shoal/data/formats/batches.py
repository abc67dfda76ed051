"""Tables become record batches of exactly the schema that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ROWS = 65_536  # of the largest batch


def as_batches(table: Any, schema: Any) -> Iterator[Any]:
    """The columns of `schema` of a `pyarrow.Table`, as record batches. Raises `pyarrow.ArrowInvalid` where values do
    not fit the types."""
    import pyarrow as pa

    chosen = table.select(schema.names)
    if not chosen.schema.equals(schema, check_metadata=True):
        chosen = chosen.cast(schema)
    for batch in chosen.to_batches(max_chunksize=ROWS):
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
