"""From raw files to shards: nothing lost, nothing twice, in equal parts, whoever does the work."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prepared_rows import ROWS, SMALL, names, rows, shards, table

from shoal.core.errors import ConfigError, UserError
from shoal.data import Job, prepare
from shoal.data.manifest import Manifest
from shoal.data.partition.plan import Plan, shards_of
from shoal.data.places import Place
from shoal.data.preparing.engine import InProcess
from shoal.data.preparing.local import LocalEngine
from shoal.data.preparing.progress import Progress

pytestmark = pytest.mark.unit

WAYS = ["file", "round-robin", "key:user", "key:name", "range:user", "range:name", "range:score", "rank:score"]


@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_in_exactly_one_shard_and_none_is_too_large(ratings: Path, tmp_path: Path, way: str) -> None:
    made = prepare(ratings, tmp_path, partition=way, shards=16, engine=InProcess(), sizes=SMALL)
    assert rows(tmp_path).equals(table())
    assert made.manifest.skew <= 1.1
    assert len(made.manifest.shards) == 16
    assert made.source_rows == ROWS


def test_plain_hashing_would_have_been_far_worse_and_the_manifest_says_so(ratings: Path, tmp_path: Path) -> None:
    manifest = prepare(ratings, tmp_path, partition="key:user", shards=16, engine=InProcess(), sizes=SMALL).manifest
    plan = Plan.of(manifest)
    assert plan.skew == manifest.skew <= 1.1
    assert plan.plain_skew is not None
    assert plan.plain_skew > 2.5
    heaviest = plan.heavy[0]
    users = table()["user"].to_numpy()
    assert (heaviest.key, heaviest.rows) == (1, int((users == 1).sum()))
    for user in (1, 2, 3, 17, int(users[5])):
        held = {number for number, shard in enumerate(shards(tmp_path)) if user in shard["user"].to_pylist()}
        assert held <= set(shards_of(plan, user))
    assert len(shards_of(plan, 1)) > 2


def test_kept_keys_are_each_in_one_shard_and_the_skew_is_told(ratings: Path, tmp_path: Path) -> None:
    made = prepare(
        ratings, tmp_path, partition="key:user", shards=8, keep_keys=True, engine=InProcess(), sizes=SMALL
    ).manifest
    users = [set(shard["user"].to_pylist()) for shard in shards(tmp_path)]
    assert sum(map(len, users)) == len(set().union(*users))
    assert made.skew == Plan.of(made).skew > 1.1
    assert rows(tmp_path).equals(table())


def test_ranges_are_sorted_over_all_shards(ratings: Path, tmp_path: Path) -> None:
    made = prepare(ratings, tmp_path, partition="range:score", shards=5, engine=InProcess(), sizes=SMALL).manifest
    scores = pa.concat_tables(shards(tmp_path))["score"].to_numpy()
    assert (np.diff(scores) >= 0).all()
    assert [shard.keys for shard in made.shards] == [
        (shard["score"].to_numpy().min(), shard["score"].to_numpy().max()) for shard in shards(tmp_path)
    ]


def test_blocks_and_turns_keep_the_order_of_the_source(ratings: Path, tmp_path: Path) -> None:
    prepare(ratings, tmp_path / "blocks", partition="file", shards=4, engine=InProcess(), sizes=SMALL)
    assert [row for shard in shards(tmp_path / "blocks") for row in shard["id"].to_pylist()] == list(range(ROWS))
    prepare(ratings, tmp_path / "turns", partition="round-robin", shards=7, engine=InProcess(), sizes=SMALL)
    for number, shard in enumerate(shards(tmp_path / "turns")):
        assert shard["id"].to_pylist() == list(range(number, ROWS, 7))


def test_by_rank_every_shard_has_its_part_of_the_hottest(ratings: Path, tmp_path: Path) -> None:
    prepare(ratings, tmp_path, partition="rank:score", shards=8, engine=InProcess(), sizes=SMALL)
    least = np.sort(table()["score"].to_numpy())[-80]
    assert [int((shard["score"].to_numpy() >= least).sum()) for shard in shards(tmp_path)] == [10] * 8


def test_shards_are_the_same_bytes_for_any_number_of_processes(ratings: Path, tmp_path: Path) -> None:
    marks = []
    for number, engine in enumerate((InProcess(), LocalEngine(1), LocalEngine(3))):
        with engine:
            made = prepare(ratings, tmp_path / str(number), partition="key:user", shards=6, engine=engine, sizes=SMALL)
        marks.append([shard.sha256 for shard in made.manifest.shards])
    assert marks[0] == marks[1] == marks[2]


def test_the_manifest_tells_the_truth_about_the_files(ratings: Path, tmp_path: Path) -> None:
    made = prepare(ratings, tmp_path, partition="key:name", shards=3, engine=InProcess(), sizes=SMALL)
    manifest = Manifest.read(Place.of(tmp_path))
    assert manifest == made.manifest
    assert manifest.rows == ROWS
    for shard in manifest.shards:
        data = (tmp_path / shard.file).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard.bytes, shard.sha256)
        assert [zlib.crc32(data[group.start : group.stop]) for group in shard.row_groups] == [
            group.crc32 for group in shard.row_groups
        ]
        assert pq.read_metadata(tmp_path / shard.file).num_row_groups == len(shard.row_groups)
    scores = table()["score"].to_numpy()
    told = manifest.statistics["score"]
    assert (told.min, told.max) == (scores.min(), scores.max())
    assert told.mean == pytest.approx(scores.mean())
    assert told.std == pytest.approx(scores.std())
    assert manifest.schema.names == ["id", "user", "name", "score"]
    assert manifest.source["files"] == 3


def test_a_data_set_is_not_replaced_unless_asked_and_then_wholly(ratings: Path, tmp_path: Path) -> None:
    prepare(ratings, tmp_path, shards=4, engine=InProcess())
    before = names(tmp_path)
    with pytest.raises(UserError, match="--overwrite"):
        prepare(ratings, tmp_path, shards=2, engine=InProcess())
    assert names(tmp_path) == before
    made = prepare(ratings, tmp_path, shards=2, partition="range:id", overwrite=True, engine=InProcess())
    assert names(tmp_path) == {"_manifest.json", *(shard.file for shard in made.manifest.shards)}
    assert rows(tmp_path).equals(table())


class _Said(Progress):
    def __init__(self, stop_after: int = 10**9) -> None:
        self.words: list[str] = []
        self.before = self.done = 0
        self._stop_after = stop_after

    def say(self, words: str) -> None:
        self.words.append(words)

    def advance(self, tasks: int, rows: int, nbytes: int, *, done_before: bool = False) -> None:
        self.before += done_before
        self.done += not done_before
        if self.done >= self._stop_after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stop_after", [1, 9, 16])
def test_what_was_broken_off_goes_on_where_it_was(ratings: Path, tmp_path: Path, stop_after: int) -> None:
    def again(progress: Progress) -> None:
        prepare(ratings, tmp_path, partition="key:user", shards=8, engine=InProcess(), sizes=SMALL, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        again(_Said(stop_after))
    assert not (tmp_path / "_manifest.json").exists()
    second = _Said()
    again(second)
    assert second.before == stop_after
    assert any("going on" in words for words in second.words)
    assert rows(tmp_path).equals(table())
    assert {name for name in names(tmp_path) if not name.startswith("part-")} == {"_manifest.json"}


def test_what_was_begun_with_other_settings_begins_anew_and_says_so(ratings: Path, tmp_path: Path) -> None:
    for shard_count, stop in ((8, 16), (5, 10**9)):
        said = _Said(stop)
        try:
            prepare(
                ratings,
                tmp_path,
                partition="key:user",
                shards=shard_count,
                engine=InProcess(),
                sizes=SMALL,
                progress=said,
            )
        except KeyboardInterrupt:
            assert any(name.startswith("part-") for name in names(tmp_path))
    assert said.before == 0
    assert any("beginning anew" in words for words in said.words)
    assert len([name for name in names(tmp_path) if name.startswith("part-")]) == 5
    assert rows(tmp_path).equals(table())


def test_other_files_begin_anew(tmp_path: Path) -> None:
    source = tmp_path / "raw.jsonl"
    source.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(5)))
    with pytest.raises(KeyboardInterrupt):
        prepare(source, tmp_path / "set", shards=2, engine=InProcess(), progress=_Said(1))
    source.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(7)))
    prepare(source, tmp_path / "set", shards=2, engine=InProcess())
    assert rows(tmp_path / "set")["id"].to_pylist() == list(range(7))


def test_more_shards_than_rows_leaves_some_empty(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("id,user\n1,5\n2,5\n3,6\n")
    for number, way in enumerate(["file", "round-robin", "key:user", "range:user", "rank:id"]):
        prepare(tmp_path / "raw.csv", tmp_path / str(number), partition=way, shards=7, engine=InProcess())
        assert rows(tmp_path / str(number))["id"].to_pylist() == [1, 2, 3], way


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition": "key:usr"}, "did you mean 'user'"),
        ({"partition": "key"}, "by which column"),
        ({"partition": "file", "keep_keys": True}, "--keep-keys"),
        ({"shards": 0}, "--shards 0"),
        ({"shards": "many"}, "--shards many"),
        ({"bad_records": "ignore"}, "fail or reject"),
        ({"engine": "flink"}, "unknown engine 'flink'"),
        ({"engine": "local", "memory": "1MiB"}, "too little"),
        ({"job": "dedup"}, "did you mean 'dedupe'"),
        ({"job": "nowhere.py"}, "cannot be read"),
    ],
)
def test_a_mistake_is_refused_with_what_to_do(
    ratings: Path, tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        prepare(ratings, tmp_path / "set", **{"engine": InProcess(), "shards": 2, **settings})  # type: ignore[arg-type]
    assert not (tmp_path / "set" / "_manifest.json").exists()


def test_a_folder_with_other_things_is_left_alone(ratings: Path, tmp_path: Path) -> None:
    (tmp_path / "letters.parquet").write_text("mine")
    for settings in ({}, {"overwrite": True}):
        with pytest.raises(UserError, match="holds other things"):
            prepare(ratings, tmp_path, engine=InProcess(), **settings)
    assert names(tmp_path) == {"letters.parquet"}
    with pytest.raises(UserError, match="is a file"):
        prepare(ratings, tmp_path / "letters.parquet", engine=InProcess())


@pytest.mark.parametrize("dest", [".", "below", ".."])
def test_a_data_set_is_not_written_into_its_source_nor_around_it(ratings: Path, dest: str) -> None:
    with pytest.raises(ConfigError, match="another place"):
        prepare(ratings, (ratings / dest).resolve(), engine=InProcess())


@pytest.mark.parametrize("way", ["key:user", "range:user", "range:weight", "rank:weight", "key:name"])
def test_missing_keys_are_keys_like_others(tmp_path: Path, way: str) -> None:
    kinds = ({"user": 1, "weight": 0.5, "name": "a"}, {"user": None, "weight": None, "name": None})
    lines = [{"id": row, **kinds[row % 3 == 0]} | ({"user": row} if row % 5 == 0 else {}) for row in range(400)]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = prepare(tmp_path / "raw.jsonl", tmp_path / "set", partition=way, shards=4, engine=InProcess())
    assert rows(tmp_path / "set").to_pylist() == lines
    assert made.manifest.skew <= 1.1


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        prepare(tmp_path / "nowhere.csv", tmp_path / "set", engine=InProcess())


def test_a_job_without_rows_makes_no_data_set(ratings: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row"):
        prepare(ratings, tmp_path, job=Job(map=lambda batch: None), engine=InProcess())


def test_combine_without_reduce_is_refused() -> None:
    with pytest.raises(ConfigError, match="no reduce"):
        Job(key="user", combine=lambda key, rows: rows)


def test_a_place_that_is_not_local_is_written_to_and_read_from(ratings: Path, tmp_path: Path) -> None:
    far = Place.of("memory://prepared/ratings")
    try:
        made = prepare(ratings, far, partition="key:user", shards=3, engine=InProcess(), sizes=SMALL, work=tmp_path)
        assert sorted(entry.place.name for entry in far.files()) == sorted(one.file for one in made.manifest.shards)
        prepare(far, tmp_path / "near", partition="range:id", shards=2, engine=InProcess())
        assert rows(tmp_path / "near").equals(table())
        assert not any((tmp_path).glob("prepare-*"))
    finally:
        far.remove()


def test_what_is_spilled_may_lie_where_the_data_set_does(ratings: Path) -> None:
    class Elsewhere(InProcess):
        shares_disk = False

    far = Place.of("memory://prepared/spilled")
    try:
        prepare(ratings, far, partition="rank:score", shards=3, engine=Elsewhere(), sizes=SMALL)
        assert sum(shard.rows for shard in Manifest.read(far).shards) == ROWS
        assert not (far / "_work").exists()
    finally:
        far.remove()
