"""CSV to tables, of stated types or of guessed ones."""

from __future__ import annotations

from typing import Any

from shoal.data.formats.csv_quotes import is_open

_MOSTLY = 0.95  # a column with so many numbers is one of numbers, and what is no number in it is a bad record


def parse_csv(
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


def guess_types(lines: bytes, names: list[str], separator: str, multiline: bool) -> Any:
    """A schema by the first lines. Lines that are no good CSV have no say."""
    import pyarrow as pa

    if b'"' in lines and not multiline:
        lines = b"\n".join(line for line in lines.split(b"\n") if not is_open(line, separator))
    if not lines.strip():
        return pa.schema([(name, pa.null()) for name in names])
    table = parse_csv(lines, names, separator, multiline, {}, bad=[])
    return pa.schema([(name, _most(table[name])) for name in names])


def _most(column: Any) -> Any:
    """The type of a column; where it is text, or bytes that are no text, what nearly all of it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return column.type
    text = column
    if pa.types.is_binary(column.type):
        text = pa.chunked_array([[_text(value) for value in column.to_pylist()]], pa.string())
    text = pc.drop_null(text)
    if len(text) < _MOSTLY * len(column):
        return column.type
    stripped = pc.utf8_trim_whitespace(text)
    stripped = stripped.filter(pc.not_equal(stripped, ""))
    whole = pc.sum(pc.match_substring_regex(stripped, r"^[+-]?\d{1,18}$")).as_py() or 0
    number = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
    numbers = pc.sum(pc.match_substring_regex(stripped, number)).as_py() or 0
    if not numbers or numbers < _MOSTLY * len(stripped):
        return pa.string()
    return pa.int64() if whole == numbers else pa.float64()


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
