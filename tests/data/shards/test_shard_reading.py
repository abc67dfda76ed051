"""Reading a prepared data set: the right samples, in bounded memory, no more bytes than needed."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from shard_cases import assert_numbered, numbered_data_set, requests, settings, write_data_set

from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError
from shoal.data.loader import Loader, Request
from shoal.data.places import Place
from shoal.data.shards import ShardSource

pytestmark = pytest.mark.unit
SAMPLES = 1234
SMALL = 0.01  # MiB: the data set has about 0.03


def source(folder: Path, **given: Any) -> ShardSource:
    return ShardSource(folder, settings=settings(**given))


def loader(data: ShardSource, processes: int = 0) -> Loader:
    return Loader(data, 7, processes=processes, batches=Batches(len(data), 64, 4))


@pytest.mark.parametrize("memory_mib", [SMALL, 256.0], ids=["windows", "all in memory"])
def test_a_stream_has_the_samples_of_the_order_over_epochs(tmp_path: Path, memory_mib: float) -> None:
    numbered_data_set(tmp_path, SAMPLES)
    data = source(tmp_path, memory_mib=memory_mib)
    loads = loader(data)
    for loaded in loads.stream(requests(SAMPLES, 64, 0, 1, 2), epochs=3):
        assert loaded.indices.tolist() == loads.indices(loaded.request).tolist()
        assert_numbered(loaded)


def test_other_cuts_of_an_epoch_give_the_same_samples(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, SAMPLES)
    loads = loader(source(tmp_path, memory_mib=SMALL))
    whole = loads.indices(Request(1, 0, SAMPLES)).tolist()
    for size in (1000, 64, 17):
        got = [loaded.indices for loaded in loads.stream(requests(SAMPLES, size, 1))]
        assert np.concatenate(got).tolist() == whole


def test_rows_come_in_their_order_without_a_shuffle(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, SAMPLES)
    loads = Loader(source(tmp_path, memory_mib=SMALL), 0, shuffle=False)
    got = [loaded.batch[1] for loaded in loads.stream(requests(SAMPLES, 100, 0))]
    assert torch.cat(got).tolist() == list(range(SAMPLES))


def test_samples_are_fetched_by_number(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, SAMPLES)
    rows, numbers = source(tmp_path).fetch(np.array([700, 3, 700, 1233]), 0, 0)
    assert numbers.tolist() == [700, 3, 700, 1233]
    assert rows.shape == (4, 4)
    rows += 1  # the caller may change it
    assert source(tmp_path).fetch(np.array([3]), 0, 0)[0].tolist() == [[3.0] * 4]


def test_an_epoch_fetches_each_byte_about_once(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, SAMPLES, rows=10)
    stored = sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)
    data = source(tmp_path, memory_mib=SMALL)
    for epochs in (1, 2):
        list(loader(data).stream(requests(SAMPLES, 64, epochs)))
        assert data.bytes_read <= 1.1 * stored * epochs


def test_workers_fetch_each_byte_about_once_together(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, SAMPLES, rows=5, per_shard=20)
    stored = sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)
    read = 0
    for share in (range(24), range(24, 40), range(40, 64)):  # offsets of each batch of 64
        data = source(tmp_path, memory_mib=SMALL)
        mine = [
            Request(0, at + share.start, min(at + share.stop, SAMPLES))
            for at in range(0, SAMPLES, 64)
            if at + share.start < SAMPLES
        ]
        list(loader(data).stream(mine))
        read += data.bytes_read
    assert stored <= read <= 1.25 * stored


def test_a_resume_reads_nothing_of_what_was_consumed(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, SAMPLES, rows=5, per_shard=20)
    stored = sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)
    data = source(tmp_path, memory_mib=SMALL)
    later = [request for request in requests(SAMPLES, 64, 0) if request.start >= 1024]
    list(loader(data).stream(later))
    assert data.bytes_read <= (1 - 1024 / SAMPLES + 0.2) * stored


def test_a_data_set_that_fits_into_memory_is_read_once(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, SAMPLES)
    stored = sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)
    data = source(tmp_path)
    list(loader(data).stream(requests(SAMPLES, 64, 0, 1, 2), epochs=3))
    assert data.bytes_read == stored


def test_nothing_is_read_of_epochs_that_do_not_come(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, SAMPLES, rows=5, per_shard=20)
    stored = sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)
    data = source(tmp_path, memory_mib=SMALL)
    list(loader(data).stream(requests(SAMPLES, 64, 0), epochs=1))
    assert data.bytes_read <= 1.2 * stored


def test_a_new_stream_finds_what_the_one_before_has_read(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, SAMPLES, rows=5, per_shard=20)
    stored = sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)
    data = source(tmp_path, memory_mib=SMALL)
    for request in requests(SAMPLES, 64, 0):  # as after a change of the shares at each step
        loads = loader(data)
        stream = loads.stream([request])
        assert_numbered(next(stream))
        loads.close()
    assert data.bytes_read <= 1.4 * stored


def test_a_stream_that_is_dropped_leaves_no_thread(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, SAMPLES)
    stream = loader(source(tmp_path, memory_mib=SMALL)).stream(requests(SAMPLES, 64, 0))
    next(stream)
    del stream  # the guard of all tests looks for threads


def test_requests_are_drawn_one_at_a_time_where_that_is_asked_for(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, SAMPLES)
    asked = iter(requests(SAMPLES, 64, 0))
    stream = loader(source(tmp_path)).stream(asked, ahead=False)
    assert next(stream).request == Request(0, 0, 64)
    assert next(asked) == Request(0, 64, 128)


@pytest.mark.ranks
def test_loader_processes_read_each_their_own_lanes(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, SAMPLES, rows=5, per_shard=20)
    stored = sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)
    data = source(tmp_path, memory_mib=SMALL)
    loads = loader(data, processes=2)
    for loaded in loads.stream(requests(SAMPLES, 64, 0)):
        assert loaded.indices.tolist() == loads.indices(loaded.request).tolist()
        assert_numbered(loaded)
    assert 0.9 * stored <= data.bytes_read <= 1.4 * stored


def test_a_source_goes_to_another_process_as_what_it_was_made_of(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, 100)
    other = pickle.loads(pickle.dumps(source(tmp_path)))
    assert other.fetch(np.array([42]), 0, 0)[1].tolist() == [42]


# ---- columns


def columns_data_set(folder: Path, table: pa.Table) -> None:
    write_data_set(folder, [[table]], table.schema)


def test_columns_become_tensors_by_their_types(tmp_path: Path) -> None:
    table = pa.table({
        "flag": [True, False], "small": pa.array([1, 2], pa.uint8()), "wide": pa.array([1, 2], pa.uint32()),
        "real": pa.array([0.5, None], pa.float64()), "lists": [[1, 2], [3, 4]],
        "matrix": pa.array([[[1.0, 2.0]], [[3.0, 4.0]]], pa.list_(pa.list_(pa.float32(), 2), 1)),
    })  # fmt: skip
    columns_data_set(tmp_path, table)
    flag, small, wide, real, lists, matrix = ShardSource(tmp_path).fetch(np.array([1, 0]), 0, 0)
    assert (flag.dtype, flag.tolist()) == (torch.bool, [False, True])
    assert (small.dtype, wide.dtype) == (torch.int64, torch.int64)  # as targets must be
    assert (real.dtype, lists.dtype) == (torch.float32, torch.int64)
    assert torch.isnan(real[0])
    assert lists.tolist() == [[3, 4], [1, 2]]
    assert matrix.shape == (2, 1, 2)


def test_columns_are_chosen_and_put_side_by_side(tmp_path: Path) -> None:
    columns_data_set(tmp_path, pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "name": ["x", "y"], "target": [0, 1]}))
    features, target = ShardSource(tmp_path, columns=[("a", "b"), "target"]).fetch(np.array([0, 1]), 0, 0)
    assert features.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert target.tolist() == [0, 1]
    alone = ShardSource(tmp_path, columns=["target"]).fetch(np.array([1]), 0, 0)
    assert alone.tolist() == [1]
    named = ShardSource(tmp_path, columns=["name"], decode={"name": lambda data: torch.tensor(list(bytes(data)))})
    assert named.fetch(np.array([1]), 0, 0).tolist() == [[ord("y")]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, r"column 'name' of .* is string, which is no number: leave it out by columns"),
        (["b"], r"has no column 'b': it has a, name"),
        ([], r"leaves nothing of .*: name at least one of a, name"),
    ],
)
def test_columns_that_cannot_be_samples_are_refused(tmp_path: Path, columns: Any, message: str) -> None:
    columns_data_set(tmp_path, pa.table({"a": [1.0], "name": ["x"]}))
    with pytest.raises(ConfigError, match=message):
        ShardSource(tmp_path, columns=columns)


@pytest.mark.parametrize(
    ("values", "message"),
    [(pa.array([1, None]), "has 1 empty values"), (pa.array([[1], [1, 2]]), "lists of 1 to 2 values: make them equal")],
)
def test_values_that_no_tensor_can_hold_are_named(tmp_path: Path, values: pa.Array, message: str) -> None:
    columns_data_set(tmp_path, pa.table({"a": values}))
    with pytest.raises(ConfigError, match=rf"row group 0 of .*part-00000.parquet.*column 'a' .*{message}"):
        ShardSource(tmp_path).fetch(np.array([0]), 0, 0)


# ---- images


def picture(number: int, kind: str, size: int = 16) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (size, size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def images_data_set(folder: Path, images: list[bytes]) -> None:
    groups = [
        pa.table({"image": images[at : at + 8], "label": range(at, min(at + 8, len(images)))})
        for at in range(0, len(images), 8)
    ]
    write_data_set(folder, [groups], groups[0].schema)


def test_images_are_decoded_as_pillow_does(tmp_path: Path) -> None:
    images = [picture(number, "PNG" if number % 5 == 0 else "JPEG") for number in range(40)]
    images_data_set(tmp_path, images)
    data = source(tmp_path)
    for loaded in Loader(data, 1, batches=Batches(40, 8, 1)).stream(requests(40, 8, 0)):
        pixels, labels = loaded.batch
        assert (pixels.dtype, pixels.shape[1:], pixels.is_contiguous()) == (torch.uint8, (3, 16, 16), True)
        assert labels.tolist() == loaded.indices.tolist()
        for one, number in zip(pixels, labels.tolist(), strict=True):
            expected = np.asarray(Image.open(io.BytesIO(images[number])).convert("RGB"))
            assert np.array_equal(one.permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize(
    ("bad", "why"), [(b"no image", "cannot identify"), (picture(0, "JPEG", 24), "is 24x24, and a batch has one size")]
)
def test_an_image_that_cannot_be_used_is_named(tmp_path: Path, bad: bytes, why: str) -> None:
    images_data_set(tmp_path, [*(picture(number, "JPEG") for number in range(10)), bad])
    with pytest.raises(ConfigError, match=rf"(?s)column image.* sample 10 \(row group 1 of .*parquet\).*{why}"):
        list(Loader(source(tmp_path), 0, shuffle=False).stream([Request(0, 0, 11)]))


# ---- memory

_MEASURED = """
import re, sys
from pathlib import Path
import pyarrow.dataset, pyarrow.parquet  # what they take is not meant
from shoal.core.config import LoaderSettings
from shoal.core.cursor import Batches
from shoal.data.loader import Loader, Request
from shoal.data.shards import ShardSource

def status(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

data = ShardSource(sys.argv[1], settings=LoaderSettings(memory_mib=float(sys.argv[2])))
loads = Loader(data, 1, batches=Batches(len(data), 256, 16))
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before = status("VmRSS")
seen = sum(len(one.indices) for one in loads.stream(Request(0, at, at + 256) for at in range(0, len(data) - 256, 256)))
assert seen >= len(data) - 512
print(status("VmHWM") - before)
"""


def grown_mib(folder: Path, memory_mib: float) -> float:
    """By how much the memory of a process grows that reads an epoch."""
    words = [sys.executable, "-c", _MEASURED, str(folder), str(memory_mib)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    return int(done.stdout) / 1024


@pytest.mark.ranks
def test_a_data_set_of_100_times_the_memory_is_read_within_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    groups = []
    for _ in range(400):  # 50 MiB in blocks of an eighth of one
        values = pa.array(rng.integers(0, 1 << 62, 16 * 1024))
        groups.append(pa.table({"x": pa.FixedSizeListArray.from_arrays(values, 128)}))
    write_data_set(tmp_path, [groups[at : at + 100] for at in range(0, 400, 100)], groups[0].schema)
    # about 20 MiB are libraries and what allocators keep, however little windows may take
    assert grown_mib(tmp_path, 0.5) < 40
    assert grown_mib(tmp_path, 512.0) > 80, "the measurement would not notice"


def test_the_place_may_be_a_place(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, 10)
    assert len(ShardSource(Place.of(tmp_path))) == 10
