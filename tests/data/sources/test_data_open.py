"""shoal.data.open: one call for names, files of each format anywhere, and data in memory."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn
from web_server import serving

import shoal
from shoal.core.errors import ConfigError, UserError
from shoal.core.order import Indices
from shoal.data import Source
from shoal.data.files.source import PieceSource, TableSource
from shoal.data.places import AccessError, Place

pytestmark = pytest.mark.unit


def indices(*numbers: int) -> Indices:
    return np.array(numbers, dtype=np.int64)


def everything(source: Source) -> Any:
    return source.fetch(np.arange(len(source)), 0, 0)


def table(start: int = 0, rows: int = 20) -> pa.Table:
    numbers = np.arange(start, start + rows)
    return pa.table({"x": numbers / 4, "y": numbers * 2.0, "label": (numbers % 3).astype(np.int32)})


# ---- what a sample is


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl", "parquet", "npz"])
def test_a_table_of_numbers_is_the_same_whatever_the_format(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"data.{ending}"
    write(table(), path)
    source = shoal.data.open(path)
    assert len(source) == 20
    x, y, label = source.fetch(indices(7, 0, 7), 0, 0)
    assert torch.equal(x, torch.tensor([1.75, 0, 1.75]))
    assert y.tolist() == [14, 0, 14]
    assert label.tolist() == [1, 0, 1]
    assert (x.dtype, label.dtype) == (torch.float32, torch.int64)


def write(data: pa.Table, path: Path, row_group_size: int = 6) -> None:
    if path.name.endswith(".parquet"):
        pq.write_table(data, path, row_group_size=row_group_size)
    elif path.name.endswith(".npz"):
        np.savez(path, **{name: data[name].to_numpy() for name in data.column_names})
    elif path.name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in data.to_pylist()))
    else:
        with pa.output_stream(str(path), compression="detect") as stream:
            pyarrow.csv.write_csv(data, stream)


def test_columns_are_chosen_and_put_side_by_side(tmp_path: Path) -> None:
    write(table(), tmp_path / "data.csv")
    features, label = shoal.data.open(tmp_path / "data.csv", columns=[("x", "y"), "label"]).fetch(indices(4), 0, 0)
    assert torch.equal(features, torch.tensor([[1.0, 8.0]]))
    assert label.tolist() == [1]
    assert shoal.data.open(tmp_path / "data.csv", columns=["y"]).fetch(indices(4, 5), 0, 0).tolist() == [8, 10]
    with pytest.raises(ConfigError, match="no column 'z': it has x, y, label"):
        shoal.data.open(tmp_path / "data.csv", columns=["z"])


def test_text_is_refused_unless_it_is_left_out_or_decoded(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("name,n\nann,1\nbob,2\n")
    with pytest.raises(ConfigError, match=r"column 'name' .* is string, which is no number: leave it out by columns="):
        shoal.data.open(tmp_path / "data.csv")
    assert everything(shoal.data.open(tmp_path / "data.csv", columns=["n"])).tolist() == [1, 2]
    decoded = shoal.data.open(tmp_path / "data.csv", columns=["name", "n"], decode={"name": len})
    assert everything(decoded)[0].tolist() == [3, 3]


def test_arrays_keep_their_shapes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (9, 3, 4, 5), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    batch = shoal.data.open(tmp_path / "images.npy").fetch(indices(8, 2), 0, 0)
    assert torch.equal(batch, torch.from_numpy(images[[8, 2]]))


def picture(red: int, kind: str, size: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (size, size + 1), (red, 20, 30)).save(stream, kind, quality=100)
    return stream.getvalue()


def image_folder(root: Path, classes: list[str], kind: str = "jpeg") -> None:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{number}.{kind}").write_bytes(picture(40 * number, kind))


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_image_folders_give_pixels_and_classes(tmp_path: Path, kind: str) -> None:
    image_folder(tmp_path, ["dog", "cat", "dog"], kind)
    images, labels = everything(shoal.data.open(tmp_path))
    assert images.shape == (3, 3, 9, 8)
    assert images.dtype == torch.uint8
    assert labels.tolist() == [0, 1, 1]
    assert torch.allclose(images[:, 0].float().mean((1, 2)), torch.tensor([40.0, 0, 80]), atol=3)


def test_the_classes_of_a_split_are_those_of_all(tmp_path: Path) -> None:
    image_folder(tmp_path / "train", ["ant", "bee", "cow"])
    image_folder(tmp_path / "test", ["bee", "cow"])
    assert everything(shoal.data.open(tmp_path, "test"))[1].tolist() == [1, 2]


def test_images_of_different_sizes_are_an_error_that_names_the_sample(tmp_path: Path) -> None:
    image_folder(tmp_path, ["a", "b"])
    (tmp_path / "b" / "1.jpeg").write_bytes(picture(9, "jpeg", size=16))
    with pytest.raises(UserError, match=r"sample 1 \(.*b/1.jpeg\) is 17x16"):
        everything(shoal.data.open(tmp_path))


def tar_of_images(path: Path, samples: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(samples):
            for name, content in (("cls", str(number % 2).encode()), ("jpg", picture(number * 50, "jpeg"))):
                member = tarfile.TarInfo(f"{number:03}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def test_webdataset_gives_pixels_and_then_the_class(tmp_path: Path) -> None:
    tar_of_images(tmp_path / "shard-0.tar", 5)
    images, labels = everything(shoal.data.open(tmp_path))
    assert images.shape == (5, 3, 9, 8)
    assert labels.tolist() == [0, 1, 0, 1, 0]


# ---- splits and slices


def test_slices_of_files_are_those_of_names(tmp_path: Path) -> None:
    write(table(rows=100), tmp_path / "data.csv")
    assert everything(shoal.data.open(tmp_path / "data.csv", "[10%:20]", columns=["y"])).tolist() == [
        2.0 * number for number in range(10, 20)
    ]
    assert len(shoal.data.open(tmp_path / "data.csv", "[:10]+[-10:]")) == 20


@pytest.mark.parametrize("layout", ["{}/part.parquet", "{}.parquet", "{}-00000-of-00001.parquet", "{}_1.parquet"])
def test_a_split_of_a_folder_is_the_folder_or_the_files_of_that_name(tmp_path: Path, layout: str) -> None:
    for name, start in (("train", 0), ("test", 50)):
        path = tmp_path / layout.format(name)
        path.parent.mkdir(exist_ok=True)
        write(table(start), path)
    assert everything(shoal.data.open(tmp_path, "test[:2]", columns=["y"])).tolist() == [100, 102]
    assert everything(shoal.data.open(tmp_path, "train[-1:]+test[:1]", columns=["y"])).tolist() == [38, 100]
    assert len(shoal.data.open(tmp_path, "all")) == 40
    with pytest.raises(ConfigError, match="has the splits test, train: say which"):
        shoal.data.open(tmp_path)
    with pytest.raises(ConfigError, match="no split 'trayn': did you mean 'train'"):
        shoal.data.open(tmp_path, "trayn")


def test_named_data_sets_have_splits_and_slices() -> None:
    images, labels = shoal.data.digits("train")
    for source in (shoal.data.open("digits:train[:10%]"), shoal.data.open("digits", "train[:10%]")):
        assert len(source) == 143
        batch = source.fetch(indices(142, 3), 0, 0)
        assert torch.equal(batch[0], images[[142, 3]])
        assert torch.equal(batch[1], labels[[142, 3]])
    both = shoal.data.open("digits:test+train[100:200]")
    assert len(both) == 460
    assert torch.equal(both.fetch(indices(360, 0, 361), 0, 0)[0], torch.stack([images[100], _test(0), images[101]]))


def _test(number: int) -> torch.Tensor:
    return shoal.data.digits("test")[0][number]


def test_the_order_of_a_slice_is_a_permutation_of_it() -> None:
    source = shoal.data.open("digits:train[10%:60%]")
    order = source.order(3, True)
    seen = np.concatenate([order.at(1, start, min(start + 100, len(source))) for start in range(0, len(source), 100)])
    assert sorted(seen.tolist()) == list(range(len(source)))
    assert seen.tolist() != order.at(2, 0, len(source)).tolist()
    assert source.order(3, False).at(0, 5, 9).tolist() == [5, 6, 7, 8]


def test_data_in_memory_is_opened_and_sliced(tmp_path: Path) -> None:
    source = shoal.data.open((torch.arange(10), torch.arange(10) * 2), "[20%:50%]")
    assert everything(source)[1].tolist() == [4, 6, 8]
    with pytest.raises(ConfigError, match="has no split 'train'"):
        shoal.data.open(torch.arange(10), "train")
    with pytest.raises(ConfigError, match="columns= is for files"):
        shoal.data.open(torch.arange(10), columns=["x"])


# ---- larger files, by pieces


@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_files_beyond_the_memory_are_read_by_pieces_with_the_same_samples(tmp_path: Path, ending: str) -> None:
    for number in range(3):
        write(table(number * 200_000, 200_000), tmp_path / f"{number}.{ending}", row_group_size=20_000)
    source = shoal.data.open(tmp_path, columns=["y", "label"], memory_mib=1)
    whole = shoal.data.open(tmp_path, columns=["y", "label"])
    assert isinstance(source, PieceSource)
    assert isinstance(whole, TableSource)
    assert len(source) == 600_000
    order = source.order(7, True)
    drawn = [order.at(0, start, start + 60_000) for start in range(0, 600_000, 60_000)]
    assert np.array_equal(np.sort(np.concatenate(drawn)), np.arange(600_000))
    for some in (drawn[3], indices(599_999, 0, 200_000, 199_999)):
        assert all(torch.equal(*pair) for pair in zip(source.fetch(some, 0, 0), whole.fetch(some, 0, 0), strict=True))
    part = shoal.data.open(tmp_path, "[10%:-10%]", columns=["y"], memory_mib=1)
    assert isinstance(part, PieceSource)
    assert part.fetch(indices(0, 479_999), 0, 0).tolist() == [120_000, 2 * 539_999]
    again = pickle.loads(pickle.dumps(source))
    assert torch.equal(again.fetch(indices(3), 0, 0)[0], torch.tensor([6.0]))


def test_images_and_tars_beyond_the_memory_are_read_by_pieces(tmp_path: Path) -> None:
    image_folder(tmp_path / "folder", ["dog", "cat", "dog", "eel"])
    (tmp_path / "tars").mkdir()
    tar_of_images(tmp_path / "tars" / "0.tar", 5)
    tar_of_images(tmp_path / "tars" / "1.tar", 3)
    for folder, samples in (("folder", 4), ("tars", 8)):
        source = shoal.data.open(tmp_path / folder, memory_mib=0)
        assert isinstance(source, PieceSource)
        assert len(source) == samples
        order = source.order(0, True).at(0, 0, samples)
        assert sorted(order.tolist()) == list(range(samples))
        expected = shoal.data.open(tmp_path / folder).fetch(order, 0, 0)
        assert all(torch.equal(*pair) for pair in zip(source.fetch(order, 0, 0), expected, strict=True))


def test_a_file_that_has_lost_records_since_it_was_opened_is_named(tmp_path: Path) -> None:
    write(table(rows=100), tmp_path / "data.parquet", row_group_size=50)
    source = shoal.data.open(tmp_path / "data.parquet", memory_mib=0)
    write(table(rows=80), tmp_path / "data.parquet", row_group_size=50)
    with pytest.raises(ConfigError, match=r"data.parquet has changed since it was opened"):
        source.fetch(indices(70), 0, 0)


def test_an_opened_file_can_be_sent_to_workers(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("name,n\nann,1\nbobby,2\n")
    shift = 10
    source = shoal.data.open(tmp_path / "data.csv", decode={"name": lambda text: len(text) + shift})
    assert everything(pickle.loads(cloudpickle.dumps(source)))[0].tolist() == [13, 15]


def test_an_epoch_by_pieces_reads_each_piece_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.data.files import source as module

    pq.write_table(table(0, 400_000), tmp_path / "data.parquet", row_group_size=10_000)
    source = shoal.data.open(tmp_path / "data.parquet", memory_mib=1)
    reads: list[Any] = []
    real = module.read_splits
    monkeypatch.setattr(module, "read_splits", lambda splits, wanted: reads.append(splits) or real(splits, wanted))
    order = source.order(0, True)
    for start in range(0, 400_000, 1000):
        source.fetch(order.at(0, start, start + 1000), 0, 0)
    assert 20 <= len(reads) <= 25  # of two row groups each


def test_a_csv_beyond_the_memory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write(table(0, 60_000), tmp_path / "data.csv")
    with pytest.raises(ConfigError, match=r"has 1 MB, and csv files .* up to 0 MB.*`shoal prepare`.*memory_mib=1"):
        shoal.data.open(tmp_path / "data.csv", memory_mib=0)


# ---- elsewhere


@pytest.mark.parametrize("ranges", [True, False])
def test_files_on_the_web_are_read_with_and_without_ranges(tmp_path: Path, ranges: bool) -> None:
    names = ("data.csv", "data.csv.gz", "data.jsonl", "data.parquet", "data.npz")
    for name in names:
        write(table(), tmp_path / name)
    tar_of_images(tmp_path / "data.tar", 20)
    with serving(tmp_path) as web:
        web.ranges = ranges
        for name in names:
            assert everything(shoal.data.open(f"{web.url}/{name}"))[1].tolist() == table()["y"].to_pylist()
        assert len(shoal.data.open(f"{web.url}/data.tar", "[:50%]")) == 10
        with pytest.raises(AccessError, match=r"nothing.csv does not exist: check the path"):
            shoal.data.open(f"{web.url}/nothing.csv")
        with pytest.raises(AccessError, match="cannot be searched by a pattern"):
            shoal.data.open(f"{web.url}/*.csv")


def test_other_file_systems_go_through_fsspec(tmp_path: Path) -> None:
    write(table(), tmp_path / "a.parquet")
    root = Place.of("memory://open")
    for name in ("train/a.parquet", "train/b.parquet"):
        (root / name).write((tmp_path / "a.parquet").read_bytes())
    assert len(shoal.data.open("memory://open", "train")) == 40
    assert len(shoal.data.open("memory://open/train/*.parquet")) == 40
    with pytest.raises(AccessError, match="memory://open/none does not exist"):
        shoal.data.open("memory://open/none")


# ---- errors before training


@pytest.mark.parametrize(
    ("what", "split", "says"),
    [
        ("cifar11", None, "no data set 'cifar11' and no such file: did you mean 'cifar10'"),
        ("digits", None, "the data set 'digits' has splits: say which"),
        ("digits:trayn", None, "has no split 'trayn': did you mean 'train'"),
        ("digits:train", "test", "two splits were given"),
        ("digits:train[:5000]", None, r"digits: train\[:5000\] reaches past the 1,437 samples"),
        ("digits", "all", "names none of train, test"),
        ("missing/data.csv", None, "missing/data.csv does not exist: check the path"),
        ("", None, "empty path"),
    ],
)
def test_mistakes_are_said_at_once(what: str, split: str | None, says: str) -> None:
    with pytest.raises(UserError, match=says):
        shoal.data.open(what, split)


def test_bad_records_and_empty_files_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("a,b\n" + "1,2\n" * 100 + "3\n")
    with pytest.raises(UserError, match=r"bad.csv has a bad record at 404: 1 values for 2 columns: 3"):
        shoal.data.open(tmp_path / "bad.csv")
    (tmp_path / "header.csv").write_text("a,b\n")
    with pytest.raises(UserError, match=r"header.csv has no records"):
        shoal.data.open(tmp_path / "header.csv")
    (tmp_path / "holes.csv").write_text("a,b\n1,2\n,3\n")
    with pytest.raises(UserError, match=r"holes.csv: column 'a' has 1 empty values"):
        shoal.data.open(tmp_path / "holes.csv")


def test_files_that_differ_are_said_at_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"'x' is double in .*a.parquet and int64 in .*b.parquet"):
        shoal.data.open(tmp_path)


@pytest.mark.parametrize("status", [401, 403])
def test_what_may_not_be_read_is_said_at_once(tmp_path: Path, status: int) -> None:
    with serving(tmp_path) as web:
        web.status = status
        with pytest.raises(AccessError, match=rf"secret.csv may not be used .*{status}.*: check the credentials"):
            shoal.data.open(f"{web.url}/secret.csv")


# ---- in a run


def test_a_trainer_takes_what_was_opened(tmp_path: Path) -> None:
    write(table(rows=64), tmp_path / "data.csv")
    trainer = shoal.Trainer(
        model=nn.Linear(2, 3),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.001),
        train=shoal.data.open(tmp_path / "data.csv", "[:50%]", columns=[("x", "y"), "label"]),
        test=shoal.data.open(tmp_path / "data.csv", "[50%:]", columns=[("x", "y"), "label"]),
        global_batch=8,
        epochs=2,
    )
    result = trainer.fit(run_dir=tmp_path / "run")
    assert result.summary["status"] == "completed"


def test_importing_shoal_data_imports_no_library_of_files() -> None:
    code = "import sys, shoal.data; print([m for m in ('pyarrow', 'fsspec', 'PIL', 'aiohttp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_stay_what_they_are_when_their_modules_are_imported() -> None:
    code = "import shoal.data as d; d.open('digits:test'); print(callable(d.digits), callable(d.open))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True"
