"""Text files whose records are lines: cut at line ends, read in pieces, and searched for bad lines where there are any.

A line belongs to the split in which its first byte lies. So a split that does not begin the file begins after the
first line end at or past the byte before its start, and ends with the line that covers its stop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.data.formats.base import BadRecord, Format, FormatError, OnBad, Split
from shoal.data.formats.batches import as_batches
from shoal.data.places import Entry, Place

PIECE_BYTES = 8 << 20  # as much of a split is in memory at once
SAMPLE_BYTES = 1 << 20  # the beginning of a file, by which its schema is guessed
_BEYOND_BYTES = 64 << 10  # read at a time past the end of a split, for its last line
_TEXT_CHARS = 200  # of a bad record
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

Record = tuple[int, bytes]  # where it begins, and its bytes with the line end


@dataclass(frozen=True)
class Refused(Exception):  # noqa: N818 - what was refused is a piece, the error is for on_bad
    """Lines cannot be read together. The reason is of use where it is one line."""

    reason: str


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
        return text.rfind(b"\n") + 1

    def records(self, offset: int, piece: bytes) -> list[Record]:
        """One by one, without those that are empty."""
        found = []
        for line in piece.split(b"\n"):
            if line.strip(self.blank):
                found.append((offset, line + b"\n"))
            offset += len(line) + 1
        return found

    def _salvaged(self, offset: int, piece: bytes, parse: Parse, place: Place, on_bad: OnBad) -> Iterator[Any]:
        """Tables of the good records of `piece`, in order: one, where all are good."""
        try:
            yield parse(piece)
            return
        except Refused:
            pass
        run: list[Record] = []
        for start, record in self.records(offset, piece):
            reason = self.suspect(record, start, place)
            if reason is None:
                run.append((start, record))
                continue
            yield from _halved(run, parse, place, on_bad)
            run = []
            on_bad(_bad(place, start, record, reason))
        yield from _halved(run, parse, place, on_bad)


def _halved(records: list[Record], parse: Parse, place: Place, on_bad: OnBad) -> Iterator[Any]:
    """Parse them together; where that fails, each half by itself. What the parser refuses alone is bad."""
    if not records:
        return
    try:
        yield parse(b"".join(record for _, record in records))
    except Refused as refused:
        if len(records) == 1:
            on_bad(_bad(place, *records[0], refused.reason))
            return
        middle = len(records) // 2
        yield from _halved(records[:middle], parse, place, on_bad)
        yield from _halved(records[middle:], parse, place, on_bad)


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


def compression(place: Place) -> str | None:
    return next((kind for ending, kind in COMPRESSIONS.items() if place.name.endswith(ending)), None)


def beginning(place: Place, nbytes: int = SAMPLE_BYTES) -> tuple[bytes, bool]:
    """The first bytes of a file, decompressed; and whether that is all of it."""
    if compression(place) is not None:
        with _decompressed(place) as stream:
            data = stream.read(nbytes + 1)
    else:
        data = place.read(0, min(nbytes + 1, place.nbytes()))
    return data[:nbytes], len(data) <= nbytes


def following(place: Place, offset: int) -> bytes:
    """Some bytes of a file from `offset` on; none where it is compressed."""
    if compression(place) is not None:
        return b""
    return place.read(offset, min(offset + _BEYOND_BYTES, place.nbytes()))


def sample_lines(place: Place, last_end: Callable[[bytes], int]) -> bytes:
    """Whole lines from the beginning of a file: at least one, if it has any."""
    nbytes = SAMPLE_BYTES
    while True:
        data, whole = beginning(place, nbytes)
        if whole:
            return data
        end = last_end(data)
        if end:
            return data[:end]
        nbytes *= 4


def pieces(split: Split, body: int, last_end: Callable[[bytes], int]) -> Iterator[Record]:
    """The records of a split in pieces of whole ones, each with the offset at which it begins. `body` is where the
    records of the file begin."""
    squeezed = compression(split.place) is not None
    offset, chunks = _stream(split.place, body) if squeezed else _range(split, body)
    rest = b""
    for chunk in chunks:
        rest += chunk
        end = last_end(rest)
        if end:
            yield offset, rest[:end]
            offset, rest = offset + end, rest[end:]
    if rest:
        yield offset, rest


def _stream(place: Place, body: int) -> tuple[int, Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        with _decompressed(place) as stream:
            stream.read(body)
            while chunk := stream.read(PIECE_BYTES):
                yield chunk

    return body, chunks()


class _decompressed:  # noqa: N801 - used as a function
    """The content of a compressed file as a stream; what is wrong with it is said of the file."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __enter__(self) -> _decompressed:
        import pyarrow as pa

        self._file = self._place.open()
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._file, "r"), compression(self._place))
        return self

    def read(self, nbytes: int) -> bytes:
        got = bytearray()
        try:
            while len(got) < nbytes and (part := self._stream.read(nbytes - len(got))):
                got += part
        except OSError as error:
            raise FormatError(f"{self._place} cannot be decompressed, it is damaged or cut off: {error}") from None
        return bytes(got)

    def __exit__(self, *exc: object) -> None:
        self._stream.close()
        self._file.close()


def _range(split: Split, body: int) -> tuple[int, Iterator[bytes]]:
    """The lines that begin in ``[split.start, split.stop)``: where the first does, and their bytes in chunks."""
    place, stop = split.place, split.stop
    start, first = split.start, b""
    if start <= body:
        start = body
    else:  # the line that covers the byte before belongs to the split before
        at, end = start - 1, -1
        while end < 0 and at < stop:
            first = place.read(at, min(at + PIECE_BYTES, stop))
            if not first:
                break
            end = first.find(b"\n")
            at, was = at + len(first), at
        if end < 0:
            return stop, iter(())
        start, first = was + end + 1, first[end + 1 :]
    if start >= stop:
        return stop, iter(())

    def chunks() -> Iterator[bytes]:
        last, at = first, start + len(first)
        if first:
            yield first
        while at < stop:
            last = place.read(at, min(at + PIECE_BYTES, stop))
            if not last:
                raise FormatError(f"{place} has become shorter than it was when it was listed")
            at += len(last)
            yield last
        if not last.endswith(b"\n"):
            yield from _rest_of_line(place, at)

    return start, chunks()


def _rest_of_line(place: Place, at: int) -> Iterator[bytes]:
    size = place.nbytes()
    while at < size:
        chunk = place.read(at, min(at + _BEYOND_BYTES, size))
        end = chunk.find(b"\n") + 1
        if end:
            yield chunk[:end]
            return
        yield chunk
        at += len(chunk)
