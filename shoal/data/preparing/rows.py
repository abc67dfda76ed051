"""Rows of raw files through the steps of a job, and who is to blame where that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ConfigError, UserError
from shoal.data.formats import format_named
from shoal.data.formats.base import BadRecord, Split
from shoal.data.formats.lines import LineFormat, compression, pieces
from shoal.data.formats.parquet import Parquet, opened
from shoal.data.preparing.job import describe_error
from shoal.data.preparing.rejects import Rejects
from shoal.data.preparing.step import At, Step

_TEXT_CHARS = 200
Offsets = npt.NDArray[np.int64]


def mapped(
    splits: Sequence[Split], schema: Any, steps: Sequence[Step], learned: Sequence[Any], task: int, rejects: Rejects
) -> Iterator[tuple[int, Any]]:
    """Read `splits` and pass the rows through `map` of all `steps`: (rows that were read, record batch). What cannot be
    read or mapped goes to `rejects`."""
    row = 0
    for split in splits:
        blame = _Blame(split, schema, row, rejects)
        for batch in format_named(split.format).read(split, schema, blame.unread):
            read = batch.num_rows
            for made in _through(batch, steps, learned, At(task, row), blame):
                yield read, made
                read = 0
            if read:
                yield read, None
            row += batch.num_rows


def _through(batch: Any, steps: Sequence[Step], learned: Sequence[Any], at: At, blame: _Blame) -> list[Any]:
    """The whole batch, or its halves until the row is found that cannot be mapped: exactly that one is left out."""
    try:
        return list(map_all(batch, steps, learned, at))
    except ConfigError:
        raise  # it is wrong for all rows alike
    except UserError as error:
        reason = str(error)
    except (MemoryError, OSError):
        raise
    except Exception as error:
        reason = describe_error(error)
    if batch.num_rows == 1:
        blame.tell(at.row, reason, batch)
        return []
    middle = batch.num_rows // 2
    first = _through(batch.slice(0, middle), steps, learned, at, blame)
    return first + _through(batch.slice(middle), steps, learned, At(at.task, at.row + middle), blame)


def map_all(batch: Any, steps: Sequence[Step], learned: Sequence[Any], at: At) -> Iterator[Any]:
    if not steps:
        yield batch
        return
    for made in steps[0].map(batch, at, learned[0] if learned else None):
        if made.num_rows:
            yield from map_all(made, steps[1:], learned[1:], at)


class _Blame:
    """Tells of the bad records of a split, whose first row has the number `first`."""

    def __init__(self, split: Split, schema: Any, first: int, rejects: Rejects) -> None:
        self._split, self._schema, self._first, self._rejects = split, schema, first, rejects
        self._gave_no_row: set[int] = set()
        self._records: Offsets | None = None

    def unread(self, bad: BadRecord) -> None:
        self._gave_no_row.add(bad.offset)
        self._rejects.unread += 1
        self._rejects(bad)

    def tell(self, row: int, reason: str, batch: Any) -> None:
        """Of a row that cannot be mapped."""
        offset, text = self._find(row - self._first)
        if not text:
            shown = {name: _short(one[0].as_py()) for name, one in zip(batch.schema.names, batch.columns, strict=True)}
            text = str(shown)
        self._rejects(BadRecord(str(self._split.place), offset, reason, text[:_TEXT_CHARS]))

    def _find(self, row: int) -> tuple[int, str]:
        """Where a row of the split begins, and its text if it is a line. For what has no lines, the number of the row
        in the file, as far as that is known."""
        split = self._split
        kind = format_named(split.format)
        if isinstance(kind, Parquet):
            with opened(split.place) as file:
                return row + sum(file.metadata.row_group(group).num_rows for group in range(split.start)), ""
        if not isinstance(kind, LineFormat):
            return split.start + row, ""
        if self._records is None:
            self._records = offsets_of_records(kind, split, self._schema)
        good = self._records[~np.isin(self._records, list(self._gave_no_row))]
        offset = int(good[row])
        if compression(split.place) is not None:
            return offset, ""
        line = split.place.read(offset, min(offset + _TEXT_CHARS, split.place.nbytes()))
        return offset, line.partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")


def offsets_of_records(kind: LineFormat, split: Split, schema: Any) -> Offsets:
    """Where each record of a split begins, by reading it again."""
    body, _ = kind.opened(split.place, schema)
    found = [offset for start, piece in pieces(split, body, kind.last_end) for offset, _ in kind.records(start, piece)]
    return np.array(found, np.int64)


def _short(value: Any) -> Any:
    return f"{value[:20]!r}…" if isinstance(value, str | bytes) and len(value) > 20 else value
