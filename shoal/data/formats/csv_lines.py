"""CSV: lines of values, the first with the names of the columns.

Splits are cut at line ends, so a value that holds a line end cannot be told from a broken line. Where the beginning of
a file has such values it is read as one split by ``csv-multiline``, which can also be asked for by name.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any, ClassVar

from shoal.data.formats.base import FormatError, Split, formats
from shoal.data.formats.csv_quotes import is_open, last_record_end, record_ends, spans
from shoal.data.formats.csv_types import guess_types, parse_csv
from shoal.data.formats.line_pieces import Record, beginning, following, last_line_end, sample_lines
from shoal.data.formats.lines import LineFormat, Parse, Refused, count_lines
from shoal.data.places import Entry, Place

_CONVERSION = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to ([^:]+): (.*)", re.S)
_ROW = re.compile(r"Row #(\d+)")
_COLUMNS = re.compile(r"Expected (\d+) columns, got (\d+)")
_UNCLOSED = "a quote is opened and not closed in this line"
ENDINGS = tuple(f"{kind}{packed}" for kind in (".csv", ".tsv") for packed in ("", ".gz", ".zst"))


@formats.add("csv")
class Csv(LineFormat):
    """`.tsv` is separated by tabs. Column types are guessed by the first megabyte."""

    name = "csv"
    endings = ENDINGS
    multiline: ClassVar[bool] = False

    def splits(self, entry: Entry, block_bytes: int) -> list[Split]:
        if not self.multiline and entry.nbytes and _holds_line_ends(entry.place):
            return CsvMultiline().splits(entry, block_bytes)
        return super().splits(entry, block_bytes)

    def schema(self, entry: Entry) -> Any:
        multiline = self.multiline or _holds_line_ends(entry.place)
        names, body = header(entry.place)
        lines = sample_lines(entry.place, last_record_end if multiline else last_line_end)[body:]
        return guess_types(lines, names, _separator(entry.place), multiline)

    def opened(self, place: Place, schema: Any) -> tuple[int, Parse]:
        import pyarrow as pa

        names, body = header(place)
        for name in schema.names:
            if name not in names:
                raise FormatError(f"{place} has no column {name!r}: it has {', '.join(names)}")
        types = {field.name: field.type for field in schema}
        separator = _separator(place)

        def parse(piece: bytes) -> Any:
            try:
                table = parse_csv(piece, names, separator, self.multiline, types)
            except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
                row = _ROW.search(str(error))
                raise Refused(_words(str(error), names), int(row[1]) - 1 if row else None) from None
            if not self.multiline:
                if table.num_rows != count_lines(piece):
                    raise Refused(_UNCLOSED)
                last = piece[piece.rstrip(b"\r\n").rfind(b"\n") + 1 :]
                if is_open(last, separator):
                    raise Refused(_UNCLOSED)
            return table

        return body, parse

    def suspect(self, record: bytes, offset: int, place: Place) -> str | None:
        if not is_open(record, separator := _separator(place)):
            return None
        if spans(following(place, offset), separator):
            raise FormatError(
                f"{place} has a value that goes over several lines, at byte {offset}, where lines are records: read it "
                "with the format 'csv-multiline'"
            )
        return _UNCLOSED


@formats.add("csv-multiline")
class CsvMultiline(Csv):
    """CSV with line ends within quoted values. A file is one split: where a record begins is known from its beginning
    only."""

    name = "csv-multiline"
    endings = ()
    multiline = True

    def splits(self, entry: Entry, block_bytes: int) -> list[Split]:
        return [Split(entry.place, self.name, 0, entry.nbytes, entry.nbytes)] if entry.nbytes else []

    def last_end(self, text: bytes) -> int:
        return last_record_end(text)

    def records(self, offset: int, piece: bytes) -> list[Record]:
        found, start = [], 0
        for end in record_ends(piece):
            found.append((offset + start, piece[start:end]))
            start = end
        found.append((offset + start, piece[start:]))
        return [(at, record) for at, record in found if record.strip()]

    def suspect(self, record: bytes, offset: int, place: Place) -> str | None:
        return None


def header(place: Place) -> tuple[list[str], int]:
    """The names of the columns, and where the line after them begins."""
    nbytes = 64 << 10
    while True:
        data, whole = beginning(place, nbytes)
        end = data.find(b"\n") + 1
        if end or whole:
            break
        nbytes *= 4
    line = data[: end or len(data)]
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise FormatError(f"{place} is no UTF-8 text in its first line: convert it, e.g. with `iconv`") from None
    if "\r" in text:
        raise FormatError(f"the lines of {place} end in a carriage return alone: convert it, e.g. with `mac2unix`")
    names = next(csv.reader(io.StringIO(text), delimiter=_separator(place)), [])
    odd = next((mark for mark in ";\t|" if len(names) == 1 and mark in text), None)
    if odd is not None:
        raise FormatError(
            f"the first line of {place} has no comma and several {odd!r}: values must be separated by commas, or by "
            "tabs where the name ends in .tsv"
        )
    _check_names(place, names)
    return names, len(line)


def _check_names(place: Place, names: list[str]) -> None:
    if not names or not any(name.strip() for name in names):
        raise FormatError(f"{place} has an empty first line: the names of the columns belong there")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or all(_is_number(name) for name in names):
        what = f"has {twice!r} twice" if twice is not None else "is numbers only"
        raise FormatError(
            f"the first line of {place} {what}: it must hold the names of the columns. If it is data, put a line "
            "of names before it"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _separator(place: Place) -> str:
    return "\t" if ".tsv" in place.name[-8:] else ","


def _holds_line_ends(place: Place) -> bool:
    """Whether the beginning of the file has a value over several lines."""
    data = sample_lines(place, last_line_end)
    if b'"' not in data:
        return False
    separator, start = _separator(place), 0
    for line in data.split(b"\n"):
        if is_open(line, separator):
            return spans(data[start:], separator)
        start += len(line) + 1
    return False


def _words(error: str, names: list[str]) -> str:
    """What pyarrow says of a line, for people."""
    if found := _CONVERSION.search(error):
        number, kind, what = found.groups()
        return f"column {names[int(number)]!r} should be {kind}: {what}"
    if found := _COLUMNS.search(error):
        return f"{found[2]} values for {found[1]} columns"
    return error
