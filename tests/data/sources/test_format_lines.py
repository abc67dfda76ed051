"""Text files: whatever is read at a time, and wherever a split begins, the records are the same."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.data.formats import BadRecord, FormatError, Split, find, line_pieces, read_all
from shoal.data.formats.line_pieces import pieces
from shoal.data.formats.lines import count_lines
from shoal.data.places import Place

pytestmark = pytest.mark.unit

in_folder = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.lists(st.sampled_from([b"", b"a", b"\r", b"abc", b"one two", b"0123456789" * 3]), max_size=20)


@pytest.fixture(params=[1, 3, 17, 1000])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(line_pieces, "PIECE_BYTES", request.param)
    monkeypatch.setattr(line_pieces, "_BEYOND_BYTES", request.param)
    return int(request.param)


@in_folder
@given(content=texts, ends=st.booleans(), cut=st.integers(0, 300))
@pytest.mark.usefixtures("piece_bytes")
def test_two_splits_have_every_line_once(tmp_path: Path, content: list[bytes], ends: bool, cut: int) -> None:
    data = b"\n".join(content) + (b"\n" if ends else b"")
    path = tmp_path / "data.txt"
    path.write_bytes(data)
    cut = min(cut, len(data))
    found: list[list[tuple[int, bytes]]] = []
    for start, stop in ((0, cut), (cut, len(data))):
        split = Split(Place.of(path), "csv", start, stop, stop - start)
        found.append(list(pieces(split, 0, lambda text: text.rfind(b"\n") + 1)))
    joined = [piece for half in found for piece in half]
    assert b"".join(piece for _, piece in joined) == data
    offset = 0
    for at, piece in joined:
        assert at == offset
        offset += len(piece)
    border = sum(len(piece) for _, piece in found[0])  # after the line that covers the byte before the cut
    assert border == (data.find(b"\n", cut - 1) + 1 or len(data) if cut else 0)


@in_folder
@given(
    texts=st.lists(st.sampled_from(["plain", "with, comma", 'with ""quotes""', "two\nlines", "\n\n", "windows\r\n"])),
    packed=st.booleans(),
)
@pytest.mark.usefixtures("piece_bytes")
def test_quoted_values_are_whole_whatever_is_read_at_a_time(tmp_path: Path, texts: list[str], packed: bool) -> None:
    path = tmp_path / ("data.csv.gz" if packed else "data.csv")
    data = "n,text\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(["first\none", *texts]))
    path.write_bytes(gzip.compress(data.encode()) if packed else data.encode())
    found = find(Place.of(path))
    schema = found[0][1].schema(found[0][0])
    bad: list[BadRecord] = []
    rows = [row["text"] for batch in read_all(found, schema, bad.append, 7) for row in batch.to_pylist()]
    assert not bad
    assert rows == [text.replace('""', '"') for text in ["first\none", *texts]]


@given(st.lists(st.sampled_from([b"", b"\r", b"a", b" "]), max_size=10), st.booleans())
def test_lines_that_are_not_empty_are_counted(content: list[bytes], ends: bool) -> None:
    data = b"\n".join(content) + (b"\n" if ends else b"")
    assert count_lines(data) == sum(bool(line.strip(b"\r")) for line in data.split(b"\n"))


def test_a_record_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_pieces, "PIECE_BYTES", 1000)
    monkeypatch.setattr(line_pieces, "_RECORD_BYTES", 1 << 20)
    (tmp_path / "data.csv").write_text('text,n\n"two\nlines",1\n"open' + ",2\nmore" * 200_000)
    found = find(Place.of(tmp_path / "data.csv"), "csv-multiline")
    schema = found[0][1].schema(found[0][0])
    with pytest.raises(FormatError, match=r"a record of more than 1 MiB, at byte 21"):
        list(read_all(found, schema, lambda bad: None))
