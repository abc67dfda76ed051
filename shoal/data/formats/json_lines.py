"""JSON lines: one object a line. Fields that the schema does not have are left out, missing ones are null."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from shoal.data.formats.base import FormatError, formats
from shoal.data.formats.line_pieces import Record, sample_lines
from shoal.data.formats.lines import LineFormat, Parse, Refused, count_lines
from shoal.data.places import Entry, Place

_ROW = re.compile(r" in row (\d+)$")
_NAMES = (".jsonl", ".ndjson", ".json")


@formats.add("jsonl")
class JsonLines(LineFormat):
    """Types are guessed by the first megabyte; where lines disagree, by what most of them have."""

    name = "jsonl"
    endings = tuple(f"{kind}{packed}" for kind in _NAMES for packed in ("", ".gz", ".zst"))
    blank = b"\r \t"

    def schema(self, entry: Entry) -> Any:
        import pyarrow as pa

        lines = sample_lines(entry.place, self.last_end)
        if lines.lstrip()[:1] == b"[":
            raise FormatError(
                f"{entry.place} is one JSON list, not JSON lines: write one object a line, e.g. with `jq -c '.[]'`"
            )
        good = [record for at, record in self.records(0, lines) if self.suspect(record, at, entry.place) is None]
        if lines.strip() and not good:
            raise FormatError(f"{entry.place} is no JSON lines: its lines do not begin with '{{'")
        try:
            return _parse(b"".join(good), None).schema if good else pa.schema([])
        except pa.ArrowInvalid:
            return _voted(good, entry.place)

    def opened(self, place: Place, schema: Any) -> tuple[int, Parse]:
        import pyarrow as pa

        def parse(piece: bytes) -> Any:
            lines = count_lines(piece)
            # pyarrow crashes on lines of `null`, and takes several objects in a line, or one over several
            if piece.count(b"\n{") + piece.startswith(b"{") != lines:
                raise Refused("a line does not begin with '{'")
            try:
                table = _parse(piece, schema)
                table.validate(full=True)
            except pa.ArrowInvalid as error:
                row = _ROW.search(str(error))
                raise Refused(_words(str(error)), int(row[1]) if row else None) from None
            if table.num_rows != lines:
                raise Refused("more or less than one object in the line")
            return table

        return 0, parse

    def records(self, offset: int, piece: bytes) -> list[Record]:
        return [(at, record.lstrip(self.blank)) for at, record in super().records(offset, piece)]

    def suspect(self, record: bytes, offset: int, place: Place) -> str | None:
        return None if record.startswith(b"{") else "the line does not begin with '{'"


def _parse(piece: bytes, schema: Any | None) -> Any:
    import pyarrow as pa
    import pyarrow.json as pj

    return pj.read_json(
        pa.BufferReader(piece),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(piece) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        ),
    )


def _voted(records: list[bytes], place: Place) -> Any:
    """Of each column the type that most records have; whole numbers are fractions where some are."""
    import pyarrow as pa

    votes: dict[str, Counter[Any]] = {}
    for record in records:
        try:
            table = _parse(record, None)
        except pa.ArrowInvalid:
            continue
        for field in table.schema:
            votes.setdefault(field.name, Counter())[field.type] += 1
    if not votes:
        raise FormatError(f"{place} is no JSON lines: none of its first lines is a JSON object")
    fields = []
    for name, counts in votes.items():
        counts.pop(pa.null(), None)
        kind = counts.most_common(1)[0][0] if counts else pa.null()
        fields.append((name, pa.float64() if kind == pa.int64() and pa.float64() in counts else kind))
    return pa.schema(fields)


def _words(error: str) -> str:
    return _ROW.sub("", error.removeprefix("JSON parse error: ")).replace("Column(/", "column (")
