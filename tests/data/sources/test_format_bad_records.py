"""Bad records: each is told with file, offset and reason, and all others are given."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.errors import UserError
from shoal.data.formats import BadRecord, FormatError, find, format_named, read_all
from shoal.data.places import Place

pytestmark = pytest.mark.unit


def read(path: Path, block_bytes: int = 1 << 20, schema: Any = None) -> tuple[list[dict[str, Any]], list[BadRecord]]:
    found = find(Place.of(path))
    schema = schema or found[0][1].common_schema([entry for entry, _ in found])
    bad: list[BadRecord] = []
    rows = [row for batch in read_all(found, schema, bad.append, block_bytes) for row in batch.to_pylist()]
    return rows, bad


NUMBERS = pa.schema([("a", pa.int64()), ("b", pa.float64())])
GOOD = b'{"a": 1, "b": 2.5}'


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.sampled_from([b"1,2.5", b"7,8", b"x,1", b"1", b"1,2,3", b'1,"2', b"\xff\xfe,1", b'9,"3.5"', b""]),
        max_size=60,
    ),
    block_bytes=st.integers(1, 300),
)
def test_in_csv_exactly_the_bad_lines_are_told_with_their_offsets(
    tmp_path: Path, lines: list[bytes], block_bytes: int
) -> None:
    good = {b"1,2.5": (1, 2.5), b"7,8": (7, 8.0), b'9,"3.5"': (9, 3.5)}
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,b\n" + b"".join(line + b"\n" for line in lines))
    rows, bad = read(path, block_bytes, NUMBERS)
    assert [(row["a"], row["b"]) for row in rows] == [good[line] for line in lines if line in good]
    offsets = np.cumsum([4, *(len(line) + 1 for line in lines)]).tolist()
    assert [one.offset for one in bad] == [
        offset for offset, line in zip(offsets, lines, strict=False) if line and line not in good
    ]
    assert all(one.file == str(path) and one.reason for one in bad)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.sampled_from(
            [
                GOOD, b'  {"b": 2.5, "a": 1, "c": []}', b"null", b"[1]", b'{"a": "x"}', b'{"a": 1', b"garbage", b"",
                b'{"a": 1, "b": 2.5} {"a": 1, "b": 2.5}', b'{"a": 1, "b": 2.5}}', b"}", b" ", b"\0",
            ]
        ),
        max_size=40,
    ),
    block_bytes=st.integers(1, 300),
)  # fmt: skip
def test_in_json_lines_exactly_the_bad_lines_are_told_with_their_offsets(
    tmp_path: Path, lines: list[bytes], block_bytes: int
) -> None:
    good, nothing = (GOOD, b'  {"b": 2.5, "a": 1, "c": []}'), (b"", b" ")
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + b'{"a": 3}')
    rows, bad = read(path, block_bytes, NUMBERS)
    assert rows == [*[{"a": 1, "b": 2.5} for line in lines if line in good], {"a": 3, "b": None}]
    offsets = np.cumsum([0, *(len(line) + 1 for line in lines)]).tolist()
    assert [one.offset for one in bad] == [
        offset for offset, line in zip(offsets, lines, strict=False) if line not in good + nothing
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x,2", "column 'a' should be int64: invalid value 'x'"),
        ("1,2,3", "3 values for 2 columns"),
        ('1,"2', "a quote is opened and not closed in this line"),
    ],
)
def test_the_reason_says_what_is_wrong_with_a_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n" + line + "\n3,4\n")
    rows, (bad,) = read(path, schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert [row["a"] for row in rows] == [1, 3]
    assert bad.reason.startswith(reason)
    assert bad.text == line


def test_bad_records_are_told_between_the_good_ones_around_them(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + "".join(f"{number},1\n" if number % 700 else "bad\n" for number in range(1, 3000)))
    told: list[int] = []
    found = find(Place.of(path))
    for batch in read_all(found, NUMBERS, lambda bad: told.append(bad.offset)):
        numbers = batch["a"].to_pylist()
        assert len(told) == numbers[0] // 700 == numbers[-1] // 700
    assert len(told) == 4


def test_a_column_of_numbers_stays_one_though_some_value_is_none(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + "".join(f"{number},{number / 2}\n" for number in range(100)) + "oops,1.5\n")
    rows, (bad,) = read(path)
    assert len(rows) == 100
    assert rows[3] == {"a": 3, "b": 1.5}
    assert "'oops'" in bad.reason


def test_a_column_of_text_stays_one_though_some_value_is_none(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"name,n\n" + b"plain,1\n" * 99 + b"\xff\xfe,2\n")
    rows, (bad,) = read(path)
    assert len(rows) == 99
    assert bad.reason == "column 'name' should be string: invalid UTF8 data"


def test_a_line_of_another_shape_does_not_spoil_the_guess(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1}\n{"a": "text"}\n{"a": 2}\n')
    rows, (bad,) = read(path)
    assert [row["a"] for row in rows] == [1, 2]
    assert bad.offset == 9


def test_a_quote_within_a_value_is_no_quote(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('name,price\n5" pipe,3\n"say ""hi""",4\nplain,5\n')
    rows, bad = read(path)
    assert not bad
    assert [row["name"] for row in rows] == ['5" pipe', 'say "hi"', "plain"]


def test_values_with_line_ends_are_read_where_the_beginning_shows_them(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,n\n" + "".join(f'"first\nsecond ""{n}"", third",{n}\n' for n in range(200)))
    rows, bad = read(path, block_bytes=50)
    assert not bad
    assert [row["n"] for row in rows] == list(range(200))
    assert rows[7]["text"] == 'first\nsecond "7", third'


@pytest.mark.parametrize("block_bytes", [1 << 19, 1_200_010])
def test_a_value_with_a_line_end_far_into_a_file_is_refused_with_what_to_do(tmp_path: Path, block_bytes: int) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,n\n" + "some text,1\n" * 100_000 + '"over\ntwo lines",2\n' + "some text,3\n" * 10)
    with pytest.raises(FormatError, match=r"over several lines, at byte 1200007.*'csv-multiline'"):
        read(path, block_bytes)
    again = find(Place.of(path), "csv-multiline")
    schema = again[0][1].schema(again[0][0])
    bad: list[BadRecord] = []
    assert sum(batch.num_rows for batch in read_all(again, schema, bad.append)) == 100_011
    assert not bad


def test_a_quote_that_is_never_closed_spoils_one_line_only(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('text,n\n"good",1\n"open,2\n"good",3\nmore,4\n')
    rows, (bad,) = read(path)
    assert [row["n"] for row in rows] == [1, 3, 4]
    assert (bad.offset, bad.text) == (16, '"open,2')


def test_windows_line_ends_a_byte_order_mark_and_tabs_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_bytes(b"\xef\xbb\xbfa\tb\r\n1\tx, y\r\n2\tz\r\n")
    assert read(path, 3) == ([{"a": 1, "b": "x, y"}, {"a": 2, "b": "z"}], [])


def test_a_damaged_row_group_of_parquet_is_named_and_the_others_are_given(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    table = pa.table({"a": np.arange(3000), "b": np.random.default_rng(0).random(3000)})
    pq.write_table(table, path, row_group_size=1000, write_page_checksum=True, use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 255
    path.write_bytes(data)
    rows, (bad,) = read(path)
    assert [row["a"] for row in rows] == [*range(1000), *range(2000, 3000)]
    assert bad.offset == 1000
    assert "row group 1" in bad.reason


def test_a_bad_sample_of_a_tar_is_named(tmp_path: Path) -> None:
    from test_format_contract import TestWebDataset

    path = TestWebDataset().write(tmp_path, [(1, "one"), (2, "two"), (3, "three")])
    data = bytearray(path.read_bytes())
    at = data.index(b"00001.cls") // 512 * 512 + 512
    data[at : at + 1] = b"x"
    path.write_bytes(data)
    rows, (bad,) = read(path)
    assert [row["cls"] for row in rows] == [1, 3]
    assert "should be int64" in bad.reason


def test_a_file_that_is_no_image_is_told(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(b"<html>not found</html>")
    (tmp_path / "cat" / "b.jpg").write_bytes(b"\xff\xd8\xff and so on")
    rows, (bad,) = read(tmp_path)
    assert len(rows) == 1
    assert bad.file.endswith("a.jpg")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.parquet", b"PAR1 is not enough", "is no Parquet file"),
        ("a.csv", b"1,2,3\n4,5,6\n", "is numbers only"),
        ("a.csv", b"a,b,a\n4,5,6\n", "'a' twice"),
        ("a.csv", b"a,b\r1,2\r3,4", "carriage return alone"),
        ("a.csv", b"a;b;c\n1;2;3\n", "no comma and several ';'"),
        ("a.csv", b"\n1,2\n", "empty first line"),
        ("a.csv", b"\xff\xfea\x00,\x00b\x00\n\x00", "no UTF-8"),
        ("a.jsonl", b'[{"a": 1}]', "one JSON list"),
        ("a.jsonl", b"hello\nyou\n", "do not begin with"),
        ("a.npy", b"no array", "no NumPy array"),
        ("a.npz", b"no zip", "no .npz file"),
        ("a.tar", b"no tar" * 200, "no tar file"),
        ("a.csv.gz", gzip.compress(b"a,b\n" + bytes(range(256)) * 200)[:-300], "decompressed"),
    ],
)
def test_a_file_that_is_not_of_its_format_is_an_error_that_names_it(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_arrays_that_cannot_be_columns_are_refused(tmp_path: Path) -> None:
    for number, (array, says) in enumerate(
        [
            (np.array([{}], dtype=object), "Python objects"),
            (np.array(3.0), "single value"),
            (np.zeros(3, dtype=complex), "complex"),
        ]
    ):
        path = tmp_path / f"{number}.npy"
        np.save(path, array, allow_pickle=True)
        with pytest.raises(FormatError, match=says):
            read(path)
    np.savez(tmp_path / "uneven.npz", x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(FormatError, match="'x' 3, 'y' 4"):
        read(tmp_path / "uneven.npz")


def test_arrays_with_shapes_are_lists_of_lists(tmp_path: Path) -> None:
    images = np.arange(2 * 3 * 4, dtype=">f4").reshape(2, 3, 4)
    np.save(tmp_path / "c.npy", images)
    np.save(tmp_path / "f.npy", np.asfortranarray(images))
    for name in ("c.npy", "f.npy"):
        (entry, format_) = find(Place.of(tmp_path / name))[0]
        assert format_.schema(entry).field("data").type == pa.list_(pa.list_(pa.float32(), 4), 3)
        rows, _ = read(tmp_path / name, block_bytes=1)
        assert [row["data"] for row in rows] == images.tolist()


def test_a_format_is_known_by_its_name() -> None:
    assert format_named("parquet").name == "parquet"
    with pytest.raises(UserError, match="did you mean 'parquet'"):
        format_named("parket")
