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
from shoal.data.formats.lines import (
    LineFormat,
    Parse,
    Record,
    Refused,
    beginning,
    count_lines,
    following,
    sample_lines,
)
from shoal.data.places import Entry, Place

_MOSTLY = 0.95  # a column with so many numbers is one of numbers, and what is no number in it is a bad record
_CONVERSION = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to ([^:]+): (.*)", re.S)
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
        lines = sample_lines(entry.place, _last_record_end if multiline else _last_line_end)[body:]
        return _guess(lines, names, _separator(entry.place), multiline)

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
                table = _parse(piece, names, separator, self.multiline, types)
            except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
                raise Refused(_words(str(error), names)) from None
            if not self.multiline:
                if table.num_rows != count_lines(piece):
                    raise Refused(_UNCLOSED)
                last = piece[piece.rstrip(b"\r\n").rfind(b"\n") + 1 :]
                if _is_open(last, separator):
                    raise Refused(_UNCLOSED)
            return table

        return body, parse

    def suspect(self, record: bytes, offset: int, place: Place) -> str | None:
        if not _is_open(record, separator := _separator(place)):
            return None
        if _spans(following(place, offset), separator):
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
        return _last_record_end(text)

    def records(self, offset: int, piece: bytes) -> list[Record]:
        found, start = [], 0
        for end in _record_ends(piece):
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
    names = next(csv.reader(io.StringIO(text), delimiter=_separator(place)), [])
    odd = next((mark for mark in ";\t|" if len(names) == 1 and mark in text), None)
    if odd is not None:
        raise FormatError(
            f"the first line of {place} has no comma and several {odd!r}: its values must be separated by commas, or by "
            "tabs with a name that ends in .tsv"
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


def _is_open(record: bytes, separator: str) -> bool:
    """Whether a value begins with a quote that nothing in the line closes."""
    if record.count(b'"') % 2 == 0:
        return False
    return _open_quote(record.decode("utf-8", "replace").rstrip("\r\n"), separator) >= 0


def _open_quote(line: str, separator: str) -> int:
    at, begins = 0, True
    while at < len(line):
        if begins and line[at] == '"':
            closing = _closing(line, at + 1)
            if closing < 0:
                return at
            at, begins = closing, False
        else:
            begins = line[at] == separator
        at += 1
    return -1


def _spans(text: bytes, separator: str) -> bool:
    """Whether the value that is open at the end of the first line is closed in a later one, as the end of a value."""
    whole = text.decode("utf-8", "replace")
    opened = _open_quote(whole[: whole.find("\n")].rstrip("\r"), separator)
    closing = _closing(whole, opened + 1) if opened >= 0 else -1
    return closing >= 0 and whole[closing + 1 : closing + 2] in (separator, "\r", "\n", "")


def _closing(text: str, at: int) -> int:
    """Where the quote is that ends the value; two together are one within it."""
    while (at := text.find('"', at)) >= 0:
        if text[at + 1 : at + 2] != '"':
            return at
        at += 2
    return -1


def _record_ends(text: bytes) -> list[int]:
    """Where the records end: after line ends before which there is an even number of quotes."""
    import numpy as np

    array = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(array == 10)
    quotes = np.flatnonzero(array == 34)
    found: list[int] = (ends[np.searchsorted(quotes, ends) % 2 == 0] + 1).tolist()
    return found


def _last_record_end(text: bytes) -> int:
    return (_record_ends(text) or [0])[-1]


def _last_line_end(text: bytes) -> int:
    return text.rfind(b"\n") + 1


def _holds_line_ends(place: Place) -> bool:
    """Whether the beginning of the file has a value over several lines."""
    data = sample_lines(place, _last_line_end)
    if b'"' not in data:
        return False
    separator, start = _separator(place), 0
    for line in data.split(b"\n"):
        if _is_open(line, separator):
            return _spans(data[start:], separator)
        start += len(line) + 1
    return False


def _parse(
    piece: bytes, names: list[str], separator: str, multiline: bool, types: dict[str, Any], bad: list[Any] | None = None
) -> Any:
    """All lines as a table of these types (or of guessed ones); lines with another number of values go to `bad`."""
    import pyarrow as pa
    import pyarrow.csv as pc

    def skip(row: Any) -> str:
        assert bad is not None
        bad.append(row)
        return "skip"

    return pc.read_csv(
        pa.BufferReader(piece),
        read_options=pc.ReadOptions(column_names=names, use_threads=False, block_size=len(piece) + 1),
        parse_options=pc.ParseOptions(
            delimiter=separator, newlines_in_values=multiline, invalid_row_handler=None if bad is None else skip
        ),
        convert_options=pc.ConvertOptions(column_types=types, include_columns=list(types)),
    )


def _guess(lines: bytes, names: list[str], separator: str, multiline: bool) -> Any:
    import pyarrow as pa

    if not lines.strip():
        return pa.schema([(name, pa.null()) for name in names])
    table = _parse(lines, names, separator, multiline, {}, bad=[])
    return pa.schema([(name, _number_type(table[name]) or table[name].type) for name in names])


def _number_type(column: Any) -> Any | None:
    """Of a column of text in which nearly all are numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)) or not len(column):
        return None
    text = column.cast(pa.string(), safe=False) if pa.types.is_string(column.type) else _as_text(column)
    text = pc.drop_null(pc.utf8_trim_whitespace(text))
    text = text.filter(pc.not_equal(text, ""))
    whole = pc.match_substring_regex(text, r"^[+-]?\d{1,18}$")
    number = pc.match_substring_regex(text, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
    numbers = pc.sum(number).as_py() or 0
    if not len(text) or numbers < _MOSTLY * len(text):
        return None
    return pa.int64() if pc.sum(whole).as_py() == numbers else pa.float64()


def _as_text(column: Any) -> Any:
    import pyarrow as pa

    return pa.chunked_array([[None if one is None else one.decode("utf-8", "replace") for one in column.to_pylist()]])


def _words(error: str, names: list[str]) -> str:
    """What pyarrow says of a line, for people."""
    if found := _CONVERSION.search(error):
        number, kind, what = found.groups()
        return f"column {names[int(number)]!r} should be {kind}: {what}"
    if found := _COLUMNS.search(error):
        return f"{found[2]} values for {found[1]} columns"
    return error
