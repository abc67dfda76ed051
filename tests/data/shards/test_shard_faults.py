"""Reads that fail, stall and lie; blocks that are damaged; data sets that are not what they should be."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faulty_server import serving
from hypothesis import given
from hypothesis import strategies as st
from shard_cases import (
    SCHEMA,
    assert_numbered,
    damage,
    numbered,
    numbered_data_set,
    requests,
    settings,
    write_data_set,
)  # fmt: skip

from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError, UserError
from shoal.data.loader import Loader
from shoal.data.manifest import ManifestError
from shoal.data.places import AccessError, Place
from shoal.data.shard_file import write_shard
from shoal.data.shards import ShardSource
from shoal.data.shards.fetching import DamagedError
from shoal.data.shards.patience import GiveUp, Patience, Standing, Try, Wait, next_move, pause_after
from shoal.data.shards.persist import ReadError, persist

pytestmark = pytest.mark.unit
SAMPLES = 600
SMALL = 0.005


def epoch(data: ShardSource, *epochs: int) -> list[int]:
    """The samples that came, in order, each as what it says."""
    loads = Loader(data, 7, batches=Batches(len(data), 32, 2))
    seen: list[int] = []
    for loaded in loads.stream(requests(len(data), 32, *(epochs or (0,)))):
        if len(loaded.indices):
            assert_numbered(loaded)
        seen += loaded.indices.tolist()
    return seen


# ---- reads that fail and stall


def one_in_five(number: int) -> str:
    drawn = random.Random(number).random()
    return "" if drawn > 0.2 else "stall" if drawn > 0.15 else "refuse" if drawn > 0.1 else "break off"


def test_where_one_read_in_five_fails_or_stalls_the_epoch_is_exact(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, SAMPLES, rows=10, per_shard=10)
    with serving(tmp_path, one_in_five) as server:
        data = ShardSource(server.url, settings=settings(memory_mib=SMALL, stall_s=0.2))
        seen = epoch(data)
        assert {"stall", "refuse", "break off"} <= set(server.faults)
        assert len(server.faults) > 0.1 * server.asked
    assert seen == Loader(data, 7, batches=Batches(SAMPLES, 32, 2)).order.at(0, 0, SAMPLES).tolist()


def test_what_is_garbled_on_its_way_is_read_again(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, SAMPLES, rows=10, per_shard=30)
    with serving(tmp_path, lambda number: "garble" if number > 10 and number % 7 == 0 else "") as server:
        seen = epoch(ShardSource(server.url, settings=settings(memory_mib=SMALL)))
        assert "garble" in server.faults
    assert sorted(seen) == list(range(SAMPLES))


def test_a_place_that_is_gone_ends_the_run_after_a_while_and_is_named(tmp_path: Path) -> None:
    numbered_data_set(tmp_path, SAMPLES, rows=10, per_shard=30)
    gone = threading.Event()
    with serving(tmp_path, lambda number: "refuse" if gone.is_set() else "") as server:
        data = ShardSource(server.url, settings=settings(memory_mib=SMALL, deadline_s=0.5))
        gone.set()
        with pytest.raises(ReadError, match=r"row group \d+ of http://.*cannot be read: no answer within 0.5 s"):
            epoch(data)


def test_an_error_that_a_person_must_mend_is_not_tried_again() -> None:
    tried = []

    def read() -> None:
        tried.append(1)
        raise AccessError("s3://there may not be used")

    with pytest.raises(AccessError):
        persist(read, Patience(), "it", threads=True)
    assert tried == [1]


# ---- the policy, without clocks


@given(st.integers(0, 12), st.integers(0, 5), st.floats(0, 200), st.floats(0, 10), st.floats(0, 10))
def test_a_move_is_always_possible(
    failed: int, running: int, elapsed_s: float, youngest_s: float, since_s: float
) -> None:
    patience = Patience()
    move = next_move(patience, Standing(elapsed_s, running, youngest_s, failed, since_s))
    match move:
        case Wait(seconds):
            assert 0 < seconds <= patience.deadline_s - elapsed_s
        case Try():
            assert running < patience.at_once
            assert running + failed < patience.tries
            assert elapsed_s < patience.deadline_s
        case GiveUp():
            assert elapsed_s >= patience.deadline_s or (running == 0 and failed >= patience.tries)


def test_pauses_double_up_to_a_limit() -> None:
    patience = Patience(first_pause_s=0.1, longest_pause_s=0.5)
    assert [pause_after(patience, failed) for failed in range(5)] == pytest.approx([0, 0.1, 0.2, 0.4, 0.5])
    assert next_move(patience, Standing(1.0, failed=2, since_failure_s=0.05)) == Wait(pytest.approx(0.15))
    assert next_move(patience, Standing(1.0, failed=2, since_failure_s=0.3)) == Try()


def test_a_silent_try_gets_another_beside_it() -> None:
    patience = Patience(stall_s=3.0, at_once=2)
    assert next_move(patience, Standing(1.0, running=1, youngest_s=1.0)) == Wait(2.0)
    assert next_move(patience, Standing(3.0, running=1, youngest_s=3.0)) == Try()
    assert next_move(patience, Standing(6.0, running=2, youngest_s=3.0)) == Wait(114.0)


# ---- damaged blocks


def test_a_damaged_block_is_named_with_file_and_row_group(tmp_path: Path) -> None:
    damage(tmp_path, numbered_data_set(tmp_path, SAMPLES, rows=10, per_shard=10), 3, 4)
    with pytest.raises(DamagedError, match=r"row group 4 of .*part-00003\.parquet is damaged: its checksum"):
        epoch(ShardSource(tmp_path, settings=settings(memory_mib=SMALL)))


def test_a_damaged_block_is_left_out_if_that_is_asked_for(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, SAMPLES, rows=10, per_shard=10)
    lost = {*range(*damage(tmp_path, manifest, 3, 4)), *range(*damage(tmp_path, manifest, 5, 9))}
    data = ShardSource(tmp_path, settings=settings(memory_mib=SMALL, corrupt="skip"))
    seen = epoch(data, 0, 1)
    order = data.order(7, True, Batches(SAMPLES, 32, 2))
    assert seen == [n for e in (0, 1) for n in order.at(e, 0, SAMPLES).tolist() if n not in lost]
    # another worker, which has not met the damaged blocks, finds out by itself which samples cannot have been read
    other = ShardSource(tmp_path, settings=settings(memory_mib=SMALL, corrupt="skip"))
    assert other.readable(np.arange(SAMPLES)).tolist() == [n for n in range(SAMPLES) if n not in lost]


def test_a_batch_may_be_left_without_samples(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, 20, rows=10)
    damage(tmp_path, manifest, 0, 0)
    data = ShardSource(tmp_path, settings=settings(corrupt="skip"))
    loads = Loader(data, 0, shuffle=False)
    first, second = loads.stream(requests(20, 10, 0))
    assert (len(first.indices), first.batch) == (0, None)
    assert second.indices.tolist() == list(range(10, 20))


# ---- before training


def cut_short(folder: Path) -> None:
    path = folder / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:-10])


def other_schema(folder: Path) -> None:
    table = pa.table({"x": numbered([0])["x"], "y": pa.array([1], pa.int32())})
    _replaced(folder, table)


def fewer_rows(folder: Path) -> None:
    _replaced(folder, numbered(range(7)))


def _replaced(folder: Path, table: pa.Table) -> None:
    """Another file in the place of a shard, with a manifest that knows its length."""
    from shoal.data.manifest import Manifest

    place = Place.of(folder)
    manifest = Manifest.read(place)
    shard = write_shard(place / "part-00001.parquet", [table], table.schema)
    known = manifest.shards[1].model_copy(update={"bytes": shard.bytes})
    manifest.model_copy(update={"shards": (manifest.shards[0], known, *manifest.shards[2:])}).write(place)


def garbage(folder: Path) -> None:
    path = folder / "part-00001.parquet"
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda folder: (folder / "part-00001.parquet").unlink(), AccessError, r"part-00001.parquet is missing"),
        (cut_short, ManifestError, r"part-00001.parquet has \d+ bytes and should have \d+: it is damaged"),
        (garbage, ManifestError, r"part-00001.parquet is no Parquet file, or damaged"),
        (other_schema, ManifestError, r"schema of .*part-00001.parquet is not .*: it has y: int32, the others y: int"),
        (fewer_rows, ManifestError, r"part-00001.parquet has 7 rows in 1 row groups, the manifest counts 50 in 5"),
        (lambda folder: (folder / "_manifest.json").unlink(), ManifestError, r"is no prepared data set: .*prepare"),
        (lambda folder: (folder / "_manifest.json").write_text("{}"), ManifestError, r"damaged or of another version"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_data_set_is_said_before_training(
    tmp_path: Path, spoil: Callable[[Path], Any], error: type[UserError], message: str
) -> None:
    numbered_data_set(tmp_path, 200, rows=10, per_shard=5)
    spoil(tmp_path)
    with pytest.raises(error, match=message):
        ShardSource(tmp_path)


def test_a_path_that_is_missing_and_a_data_set_that_is_empty_are_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"nowhere does not exist: check the path"):
        ShardSource(tmp_path / "nowhere")
    write_data_set(tmp_path / "empty", [], SCHEMA)
    with pytest.raises(ConfigError, match=r"the train data in .*empty is empty: its manifest counts no rows"):
        ShardSource(tmp_path / "empty")
