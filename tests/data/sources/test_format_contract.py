"""Every format: a file cut into splits of any size gives each of its records exactly once, in order."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.data.formats import BadRecord, Format, find, format_named, formats
from shoal.data.places import Place

pytestmark = pytest.mark.contract

Rows = list[dict[str, Any]]


def refuse(bad: BadRecord) -> None:
    pytest.fail(f"{bad} was called bad")


def write_csv(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.csv"
    lines = ["number,text", *(f'{number},"{text}"' for number, text in values)]
    path.write_text("\n".join(lines) + "\n" * (len(values) % 2), newline="")
    return path


def write_multiline(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.csv"
    path.write_text("number,text\r\n" + "".join(f'{number},"{text}\n"\r\n' for number, text in values), newline="")
    return path


def write_gzip(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.csv.gz"
    path.write_bytes(gzip.compress(write_csv(folder, values).read_bytes()))
    return path


def write_zstd(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.jsonl.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(write_jsonl(folder, values).read_bytes())
    return path


def write_jsonl(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps({"number": number, "text": text}) + "\n" for number, text in values))
    return path


def write_parquet(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.parquet"
    table = pa.table({"number": [number for number, _ in values], "text": [text for _, text in values]})
    pq.write_table(table, path, row_group_size=7)
    return path


def write_npy(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.npy"
    np.save(path, np.array([number for number, _ in values]))
    return path


def write_npz(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.npz"
    np.savez(path, number=np.array([n for n, _ in values]), text=np.array([text for _, text in values]))
    return path


def write_packed(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.npz"
    np.savez_compressed(path, number=np.array([n for n, _ in values]), text=np.array([t for _, t in values]))
    return path


def write_tar(folder: Path, values: list[tuple[int, str]]) -> Path:
    path = folder / "data.tar"
    with tarfile.open(path, "w") as tar:
        for row, (number, text) in enumerate(values):
            for name, content in (("cls", str(number).encode()), ("txt", text.encode())):
                member = tarfile.TarInfo(f"long/{'name' * (row % 30)}{row:05}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


@dataclass(frozen=True)
class Case:
    """A way to write records as a file, and the names of its columns."""

    write: Callable[[Path, list[tuple[int, str]]], Path]
    columns: tuple[str, ...] = ("number", "text")
    after: str = ""  # added to every text


CASES = {
    "csv": Case(write_csv),
    "csv-multiline": Case(write_multiline, after="\n"),
    "csv.gz": Case(write_gzip),
    "jsonl": Case(write_jsonl),
    "jsonl.zst": Case(write_zstd),
    "parquet": Case(write_parquet),
    "npy": Case(write_npy, columns=("data",)),
    "npz": Case(write_npz),
    "npz compressed": Case(write_packed),
    "webdataset": Case(write_tar, columns=("cls", "txt")),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def expected(case: Case, values: list[tuple[int, str]]) -> list[tuple[Any, ...]]:
    return [(number, text + case.after)[: len(case.columns)] for number, text in values]


def read(path: Path, block_bytes: int) -> tuple[list[list[tuple[Any, ...]]], Any]:
    """The records of each split, read in an order that is not theirs; and the schema."""
    entry, format_ = find(Place.of(path))[0]
    schema = format_.common_schema([entry])
    splits = format_.splits(entry, block_bytes)
    found: dict[int, list[tuple[Any, ...]]] = {}
    for number, split in reversed(list(enumerate(splits))):
        found[number] = []
        for batch in format_named(split.format).read(split, schema, refuse):
            assert batch.num_rows
            assert batch.schema.equals(schema, check_metadata=True)
            rows = batch.to_pydict()
            rows.pop("__key__", None)
            found[number] += list(zip(*rows.values(), strict=True))
    return [found[number] for number in range(len(splits))], schema


texts = st.text(
    st.characters(codec="utf-8", exclude_characters='"\r\n\0', exclude_categories=("Cs", "Cc")), max_size=30
)
records = st.lists(st.tuples(st.integers(-(2**40), 2**40), texts.map(lambda text: f"t{text}")), min_size=1, max_size=60)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=records, block_bytes=st.integers(1, 4000))
def test_every_record_is_in_exactly_one_split_for_any_block_size(
    case: Case, tmp_path: Path, values: list[tuple[int, str]], block_bytes: int
) -> None:
    by_split, _ = read(case.write(tmp_path, values), block_bytes)
    assert [row for rows in by_split for row in rows] == expected(case, values)


def test_a_large_file_is_cut_into_splits_of_about_the_size_asked_for(case: Case, tmp_path: Path) -> None:
    values = [(number, f"text {number}") for number in range(5000)]
    path = case.write(tmp_path, values)
    entry, format_ = find(Place.of(path))[0]
    splits = format_.splits(entry, 8000)
    # indexes and footers belong to no split
    assert 0.4 * entry.nbytes < sum(split.nbytes for split in splits) < 1.1 * entry.nbytes
    if path.suffix not in (".gz", ".zst") and case not in (CASES["csv-multiline"], CASES["npz compressed"]):
        assert len(splits) > 3
        assert max(split.nbytes for split in splits) <= 20_000  # a tar is padded at its end


def test_columns_can_be_left_out(case: Case, tmp_path: Path) -> None:
    values = [(1, "one"), (2, "two"), (3, "three")]
    entry, format_ = find(Place.of(case.write(tmp_path, values)))[0]
    last = case.columns[-1]
    schema = format_.common_schema([entry])
    only = pa.schema([schema.field(last)])
    batches = [
        batch
        for split in format_.splits(entry, 1 << 20)
        for batch in format_named(split.format).read(split, only, refuse)
    ]
    assert pa.Table.from_batches(batches).to_pydict() == {last: [row[-1] for row in expected(case, values)]}


def test_a_column_that_is_not_there_is_an_error_that_names_it(case: Case, tmp_path: Path) -> None:
    entry, format_ = find(Place.of(case.write(tmp_path, [(1, "one")])))[0]
    bad: list[BadRecord] = []
    said = ""
    try:
        for split in format_.splits(entry, 1 << 20):
            list(format_named(split.format).read(split, pa.schema([("nonesuch", pa.int64())]), bad.append))
    except Exception as error:
        said = str(error)
    if isinstance(format_, type(format_named("jsonl"))):  # fields of JSON may be missing
        return
    assert "nonesuch" in (said or bad[0].reason)


def test_splits_can_be_sent_to_other_processes(case: Case, tmp_path: Path) -> None:
    import pickle

    entry, format_ = find(Place.of(case.write(tmp_path, [(1, "one")])))[0]
    splits = format_.splits(entry, 1 << 20)
    assert pickle.loads(pickle.dumps(splits)) == splits


def test_all_formats_are_held_to_this() -> None:
    tested = {"csv", "csv-multiline", "jsonl", "parquet", "npy", "npz", "webdataset", "images"}
    assert set(formats) == tested
    for name in formats:
        format_ = format_named(name)
        assert isinstance(format_, Format)
        assert format_.name == name


def test_images_are_one_split_each(tmp_path: Path) -> None:
    from PIL import Image

    for number, kind in enumerate(("cat", "dog", "cat")):
        (tmp_path / kind).mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / kind / f"{number}.png")
    found = find(Place.of(tmp_path))
    schema = found[0][1].common_schema([entry for entry, _ in found])
    assert json.loads(schema.metadata[b"classes"]) == ["cat", "dog"]
    assert found[0][1].schema(found[0][0]).equals(schema, check_metadata=True)
    rows = []
    for entry, format_ in found:
        (split,) = format_.splits(entry, 1)
        (batch,) = format_.read(split, schema, refuse)
        rows += batch.to_pylist()
    assert [row["label"] for row in rows] == [0, 0, 1]
    assert [Image.open(io.BytesIO(row["image"])).getpixel((0, 0))[0] for row in rows] == [0, 2, 1]  # type: ignore[index]
