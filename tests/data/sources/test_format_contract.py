"""Every format: a file cut into splits of any size gives each of its records exactly once, in order."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from shoal.data.formats import Format, find, format_named, formats
from shoal.data.places import Place
from shoal.testing.format_contract import FormatContract, Value

pytestmark = pytest.mark.contract


class TestCsv(FormatContract):
    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.csv"
        lines = ["number,text", *(f'{number},"{text}"' for number, text in values)]
        path.write_text("\n".join(lines) + "\n" * (len(values) % 2), newline="")
        return path


class TestCsvMultiline(FormatContract):
    follow = "\n"
    whole = True

    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.csv"
        path.write_text("number,text\r\n" + "".join(f'{number},"{text}\n"\r\n' for number, text in values), newline="")
        return path


class TestCsvGzip(FormatContract):
    whole = True

    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.csv.gz"
        path.write_bytes(gzip.compress(TestCsv().write(folder, values).read_bytes()))
        return path


class TestJsonLines(FormatContract):
    optional = True

    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.jsonl"
        path.write_text("".join(json.dumps({"number": number, "text": text}) + "\n" for number, text in values))
        return path


class TestJsonLinesZstd(FormatContract):
    optional = True
    whole = True

    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.jsonl.zst"
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(TestJsonLines().write(folder, values).read_bytes())
        return path


class TestParquet(FormatContract):
    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.parquet"
        table = pa.table({"number": [number for number, _ in values], "text": [text for _, text in values]})
        pq.write_table(table, path, row_group_size=7)
        return path


class TestNpy(FormatContract):
    columns = ("data",)

    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.npy"
        np.save(path, np.array([number for number, _ in values]))
        return path


class TestNpz(FormatContract):
    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.npz"
        np.savez(path, number=np.array([number for number, _ in values]), text=np.array([text for _, text in values]))
        return path


class TestNpzCompressed(FormatContract):
    whole = True

    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.npz"
        number, text = np.array([number for number, _ in values]), np.array([text for _, text in values])
        np.savez_compressed(path, number=number, text=text)
        return path


class TestWebDataset(FormatContract):
    columns = ("cls", "txt")

    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.tar"
        with tarfile.open(path, "w") as tar:
            for row, (number, text) in enumerate(values):
                for name, content in (("cls", str(number).encode()), ("txt", text.encode())):
                    member = tarfile.TarInfo(f"long/{'name' * (row % 30)}{row:05}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return path


class TestWebDatasetGzip(FormatContract):
    columns = ("cls", "txt")
    whole = True

    def write(self, folder: Path, values: list[Value]) -> Path:
        path = folder / "data.tar.gz"
        path.write_bytes(gzip.compress(TestWebDataset().write(folder, values).read_bytes()))
        return path


def test_all_formats_are_held_to_this() -> None:
    assert set(formats) == {"csv", "csv-multiline", "jsonl", "parquet", "npy", "npz", "webdataset", "images"}
    for name in formats:
        format_ = format_named(name)
        assert isinstance(format_, Format)
        assert format_.name == name


def test_images_are_one_split_each_whatever_its_size(tmp_path: Path) -> None:
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
        (batch,) = format_.read(split, schema, lambda bad: pytest.fail(str(bad)))
        rows += batch.to_pylist()
    assert [row["label"] for row in rows] == [0, 0, 1]
    reds = [np.asarray(Image.open(io.BytesIO(row["image"])))[0, 0, 0] for row in rows]
    assert reds == [0, 2, 1]
