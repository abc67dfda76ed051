"""What files a source is: errors that say what is missing, unknown or mixed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.core.errors import UserError
from shoal.data.formats import FormatError, find
from shoal.data.places import AccessError, Place

pytestmark = pytest.mark.unit


def names(where: str | Path, format_: str | None = None) -> list[str]:
    return [entry.place.name for entry, _ in find(Place.of(where), format_)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a/one.csv", "a/two.csv", "b/three.csv", "b/_SUCCESS", "b/.three.csv.crc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x,y\n1,2\n")
    return tmp_path


def test_a_folder_is_all_files_below_it_in_order(folder: Path) -> None:
    assert names(folder) == ["one.csv", "two.csv", "three.csv"]
    assert names(folder / "b" / "three.csv") == ["three.csv"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a/*.csv", ["one.csv", "two.csv"]),
        ("*/t*.csv", ["two.csv", "three.csv"]),
        ("**/*.csv", ["one.csv", "two.csv", "three.csv"]),
        ("[!a]", ["three.csv"]),
        ("?/one.csv", ["one.csv"]),
        ("a*", ["one.csv", "two.csv"]),
    ],
)
def test_a_pattern_is_what_fits_it(folder: Path, pattern: str, found: list[str]) -> None:
    assert names(folder / pattern) == found
    memory = f"memory://{folder.name}"
    for path in folder.rglob("*.csv"):
        (Place.of(memory) / str(path.relative_to(folder))).write(path.read_bytes())
    assert names(f"{memory}/{pattern}") == found


def test_what_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(AccessError, match="nonesuch does not exist: check the path"):
        find(Place.of(folder / "nonesuch"))
    with pytest.raises(AccessError, match=r"nothing fits .*\*.parquet: check the pattern \(3 files below"):
        find(Place.of(folder / "*.parquet"))
    (folder / "empty").mkdir()
    with pytest.raises(AccessError, match="empty has no files"):
        find(Place.of(folder / "empty"))


def test_files_of_no_bytes_are_left_out_and_nothing_else_is_an_error(folder: Path) -> None:
    (folder / "a" / "zero.csv").write_text("")
    assert names(folder / "a") == ["one.csv", "two.csv"]
    with pytest.raises(FormatError, match="holds nothing: 1 file of 0 bytes"):
        find(Place.of(folder / "a" / "zero.csv"))


def test_an_unknown_ending_is_answered_by_the_nearest(folder: Path) -> None:
    (folder / "data.parqet").write_text("x")
    with pytest.raises(FormatError, match=r"data.parqet ends in .parqet, .* did you mean '.parquet'"):
        find(Place.of(folder / "data.parqet"))
    with pytest.raises(FormatError, match="leave it out by a pattern"):
        find(Place.of(folder))


def test_files_without_an_ending_are_what_is_said_of_them(folder: Path) -> None:
    (folder / "c").mkdir()
    (folder / "c" / "part-00000").write_text("x,y\n1,2\n")
    with pytest.raises(FormatError, match="part-00000 has no ending"):
        find(Place.of(folder / "c"))
    assert names(folder / "c", "csv") == ["part-00000"]


def test_mixed_formats_are_an_error_that_names_one_file_of_each(folder: Path) -> None:
    (folder / "a" / "more.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(FormatError, match=r"more.jsonl is jsonl, one.csv is csv\. Say which with format='jsonl'"):
        find(Place.of(folder / "a"))
    assert names(folder / "a", "csv") == ["one.csv", "two.csv"]


def test_files_that_differ_are_an_error_that_names_both_and_the_difference(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": [1.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": [2.0], "x": [2]}), tmp_path / "b.parquet")
    found = find(Place.of(tmp_path))
    entries = [entry for entry, _ in found]
    assert found[0][1].common_schema(entries).names == ["x", "y"]  # another order is no difference
    pq.write_table(pa.table({"x": [1], "y": ["text"]}), tmp_path / "b.parquet")
    with pytest.raises(FormatError, match=r"column 'y' is double in .*a.parquet and string in .*b.parquet"):
        found[0][1].common_schema(entries)
    pq.write_table(pa.table({"x": [1], "z": [1.0]}), tmp_path / "b.parquet")
    with pytest.raises(FormatError, match=r"a.parquet has a column 'y', .*b.parquet has not"):
        found[0][1].common_schema(entries)


def test_guesses_of_files_are_brought_together(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,z\n1,,\n2,,\n")
    (tmp_path / "b.csv").write_text("z,y,x\n,4,1.5\n")
    found = find(Place.of(tmp_path))
    schema = found[0][1].common_schema([entry for entry, _ in found])
    assert schema == pa.schema([("x", pa.float64()), ("y", pa.int64()), ("z", pa.string())])
    (tmp_path / "b.csv").write_text("x,y,z\n1,2,3\ntext,2,3\nwords,3,4\n")
    with pytest.raises(UserError, match=r"column 'x' is int64 in .*a.csv and string in .*b.csv"):
        found[0][1].common_schema([entry for entry, _ in found])
