"""Bytes of text files, in pieces of whole records.

A line belongs to the split in which its first byte lies. So a split that does not begin the file begins after the
first line end at or past the byte before its start, and ends with the line that covers its stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.data.formats.base import FormatError, Split
from shoal.data.places import Place

PIECE_BYTES = 8 << 20  # as much of a split is in memory at once
SAMPLE_BYTES = 1 << 20  # the beginning of a file, by which its schema is guessed
_BEYOND_BYTES = 64 << 10  # read at a time past the end of a split, for its last line
_RECORD_BYTES = 256 << 20
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

Record = tuple[int, bytes]  # where it begins, and its bytes with the line end


def compression(place: Place) -> str | None:
    return next((kind for ending, kind in _COMPRESSIONS.items() if place.name.endswith(ending)), None)


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


def last_line_end(text: bytes) -> int:
    """Where the last line that is complete ends."""
    return text.rfind(b"\n") + 1


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
        elif len(rest) > _RECORD_BYTES:
            raise FormatError(
                f"{split.place} has a record of more than {_RECORD_BYTES >> 20} MiB, at byte {offset}: a line that "
                "does not end, or a quote that is not closed"
            )
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
            if error.errno is not None:
                raise  # the file system's, not the file's
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
