"""Text files whose records are lines: cut at line ends, read in pieces, and searched for bad lines where there are
any."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from shoal.data.formats.base import BadRecord, Format, OnBad, Split
from shoal.data.formats.batches import as_batches
from shoal.data.formats.line_pieces import Record, compression, last_line_end, pieces
from shoal.data.places import Entry, Place

__all__ = ["LineFormat", "Parse", "Refused", "compression", "count_lines", "pieces"]

_SEARCHED = 512  # records among which bad ones are searched for at a time
_TEXT_CHARS = 200  # of a bad record


class Refused(Exception):  # noqa: N818 - what was refused is a piece, the error is for on_bad
    """Lines cannot be read together. The reason is of use where it is one line; `row` is the one to blame, if known."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.row = reason, row


Parse = Callable[[bytes], Any]  # a table of as many rows as there are records, or raises Refused


class LineFormat(Format):
    """What CSV and JSON lines share. Files that are compressed are one split."""

    guesses = True
    blank: ClassVar[bytes] = b"\r"  # a line of nothing else is no record

    def splits(self, entry: Entry, block_bytes: int) -> list[Split]:
        size = entry.nbytes
        if compression(entry.place) is not None:
            return [Split(entry.place, self.name, 0, size, size)] if size else []
        return [
            Split(entry.place, self.name, start, min(start + block_bytes, size), min(block_bytes, size - start))
            for start in range(0, size, block_bytes)
        ]

    def read(self, split: Split, schema: Any, on_bad: OnBad) -> Iterator[Any]:
        body, parse = self.opened(split.place, schema)
        for offset, piece in pieces(split, body, self.last_end):
            for table in self._salvaged(offset, piece, parse, split.place, on_bad):
                yield from as_batches(table, schema)

    @abstractmethod
    def opened(self, place: Place, schema: Any) -> tuple[int, Parse]:
        """Where the records of this file begin, and what reads them."""

    @abstractmethod
    def suspect(self, record: bytes, offset: int, place: Place) -> str | None:
        """Why a record must not be given to the parser, if so."""

    def last_end(self, text: bytes) -> int:
        """Where the last record that is complete ends."""
        return last_line_end(text)

    def records(self, offset: int, piece: bytes) -> list[Record]:
        """One by one, without those that are empty."""
        found = []
        for line in piece.split(b"\n"):
            if line.strip(self.blank):
                found.append((offset, line + b"\n"))
            offset += len(line) + 1
        return found

    def _salvaged(self, offset: int, piece: bytes, parse: Parse, place: Place, on_bad: OnBad) -> Iterator[Any]:
        """Tables of the good records of `piece`; the bad ones are searched for only where there are any, and told after
        the good ones before them are given."""
        import pyarrow as pa

        try:
            yield parse(piece)
            return
        except Refused:
            pass
        tables: list[Any] = []
        for found in self._sorted_out(offset, piece, parse, place):
            if not isinstance(found, BadRecord):
                tables.append(found)
                continue
            if tables:
                yield pa.concat_tables(tables).combine_chunks()
                tables = []
            on_bad(found)
        if tables:
            yield pa.concat_tables(tables).combine_chunks()

    def _sorted_out(self, offset: int, piece: bytes, parse: Parse, place: Place) -> Iterator[Any]:
        """Tables and bad records, in order."""
        run: list[Record] = []
        for start, record in self.records(offset, piece):
            reason = self.suspect(record, start, place)
            if reason is None:
                run.append((start, record))
                if len(run) < _SEARCHED:
                    continue
            yield from _search(run, parse, place)
            run = []
            if reason is not None:
                yield _bad(place, start, record, reason)
        yield from _search(run, parse, place)


def _search(records: list[Record], parse: Parse, place: Place) -> Iterator[Any]:
    """Tables of the good ones, and the bad. Where records cannot be parsed together, they are parted at the one that
    the parser blames, or else in the middle. What it refuses alone is bad."""
    parts = [records]
    while parts:
        part = parts.pop()
        if not part:
            continue
        try:
            yield parse(b"".join(record for _, record in part))
        except Refused as refused:
            if len(part) == 1:
                yield _bad(place, *part[0], refused.reason)
            elif refused.row is not None and 0 <= refused.row < len(part):
                parts += [part[refused.row + 1 :], [part[refused.row]], part[: refused.row]]
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]


def _bad(place: Place, start: int, record: bytes, reason: str) -> BadRecord:
    text = record[:_TEXT_CHARS].decode("utf-8", "replace").rstrip("\r\n")
    return BadRecord(str(place), start, reason, text)


def count_lines(piece: bytes) -> int:
    """Those that are not empty."""
    if not piece:
        return 0
    count = piece.count(b"\n") + (not piece.endswith(b"\n"))
    if b"\n\n" in piece or b"\n\r\n" in piece or piece[:1] in (b"\n", b"\r"):
        count -= sum(not line.strip(b"\r") for line in piece.split(b"\n")[:count])
    return count
