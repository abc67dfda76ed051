"""Raw files of each format on real HDFS and real S3: found, cut and read as on a disk."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.core.errors import UserError
from shoal.data.formats import BadRecord, find, format_named
from shoal.data.places import Place

pytest.importorskip("shoal.testing.services", reason="needs the services of the tests")

ROWS = 700


@pytest.fixture(params=["hdfs", "s3"])
def folder(request: pytest.FixtureRequest) -> Place:
    return Place.of(request.getfixturevalue(request.param))


def table() -> pa.Table:
    return pa.table({"x": np.arange(ROWS) / 4, "label": np.arange(ROWS) % 7})


def file_of(ending: str, tmp_path: Path) -> bytes:
    path = tmp_path / f"data.{ending}"
    if ending == "parquet":
        pq.write_table(table(), path, row_group_size=100)
    elif ending == "npz":
        np.savez(path, x=table()["x"].to_numpy(), label=table()["label"].to_numpy())
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table().to_pylist()))
    elif ending == "tar":
        with tarfile.open(path, "w") as tar:
            for number, row in enumerate(table().to_pylist()):
                stream = io.BytesIO()
                np.save(stream, np.float64(row["x"]))
                for name, content in (("x.npy", stream.getvalue()), ("cls", str(row["label"]).encode())):
                    member = tarfile.TarInfo(f"{number:05}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    else:
        with pa.output_stream(str(path), compression="detect") as stream:
            pyarrow.csv.write_csv(table(), stream)
    return path.read_bytes()


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl", "parquet", "npz", "tar"])
def test_files_elsewhere_are_opened_and_cut_as_on_a_disk(folder: Place, tmp_path: Path, ending: str) -> None:
    (folder / f"train.{ending}").write(file_of(ending, tmp_path))
    source = shoal.data.open(folder.url, "train[10%:]")
    assert len(source) == ROWS * 9 // 10
    x, label = source.fetch(np.array([5, ROWS * 9 // 10 - 1, 0]), 0, 0)
    assert x.tolist() == [75 / 4, 699 / 4, 70 / 4]
    assert label.tolist() == [75 % 7, 699 % 7, 70 % 7]
    entry, format_ = find(folder / f"train.{ending}")[0]
    schema = format_.common_schema([entry])
    bad: list[BadRecord] = []
    counts = [
        sum(batch.num_rows for batch in format_named(split.format).read(split, schema, bad.append))
        for split in format_.splits(entry, entry.nbytes // 4)
    ]
    assert sum(counts) == ROWS
    assert not bad
    assert len(counts) > 2 or ending == "csv.gz"


def test_images_and_patterns_elsewhere(folder: Place) -> None:
    from PIL import Image

    for number, name in enumerate(("cat", "dog", "cat")):
        stream = io.BytesIO()
        Image.new("RGB", (6, 5), (number, 0, 0)).save(stream, "png")
        (folder / f"{name}/{number}.png").write(stream.getvalue())
    images, labels = shoal.data.open(folder.url).fetch(np.arange(3), 0, 0)
    assert images.shape == (3, 3, 5, 6)
    assert labels.tolist() == [0, 0, 1]
    assert len(shoal.data.open(f"{folder.url}/c*/*.png")) == 2


def test_what_is_not_there_or_empty_is_said_at_once(folder: Place) -> None:
    (folder / "a.csv").write(b"x\n1\n")
    for what, says in (
        (f"{folder.url}/nothing.csv", "nothing.csv does not exist: check the path"),
        (f"{folder.url}/*.parquet", "nothing fits"),
    ):
        with pytest.raises(UserError, match=says):
            shoal.data.open(what)
    (folder / "a.csv").write(b"")
    with pytest.raises(UserError, match="holds nothing"):
        shoal.data.open(f"{folder.url}/a.csv")


def test_wrong_credentials_are_said_at_once(request: pytest.FixtureRequest) -> None:
    place = Place.of(request.getfixturevalue("s3"))
    (place / "a.csv").write(b"x\n1\n")
    wrong: dict[str, Any] = {"key": "someone", "secret": "else"}
    with pytest.raises(UserError, match="check the permissions or credentials"):
        shoal.data.open(f"{place.url}/a.csv", options=wrong)
