"""Jobs: the user's functions, and those that are there by name."""

from __future__ import annotations

import importlib
import io
import linecache
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from prepared_rows import PART, ROWS, SMALL, rows, shards, table

import shoal.data
from shoal.core.errors import ConfigError, UserError
from shoal.data import Job, prepare
from shoal.data.manifest import Manifest
from shoal.data.partition import hashing
from shoal.data.preparing import grouping, layout
from shoal.data.preparing.engine import InProcess
from shoal.data.preparing.job import JobStep

pytestmark = pytest.mark.unit

COUNTS = """
import pyarrow as pa

def map(batch):
    return pa.record_batch({"user": batch["user"], "times": pa.array([1] * batch.num_rows)})

def key(batch):
    return "user"

def reduce(key, rows):
    return {"user": [key], "times": [sum(rows["times"].to_pylist())]}
"""
COMBINE = "\ncombine = reduce\n"


def here(source: Path, dest: Path, **settings: object) -> Manifest:
    return prepare(source, dest, engine=InProcess(), sizes=SMALL, **{"shards": 4, **settings}).manifest  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("way", "combine"),
    [
        ("key", ""),
        ("key:user", COMBINE),
        ("range:times", ""),
        ("rank:times", COMBINE),
        ("file", ""),
        ("round-robin", ""),
    ],
)
def test_reducing_by_key_sees_all_rows_of_a_key_before_rows_are_divided(
    ratings: Path, tmp_path: Path, way: str, combine: str
) -> None:
    (tmp_path / "job.py").write_text(COUNTS + combine)
    manifest = here(ratings, tmp_path / "set", job=tmp_path / "job.py", partition=way)
    counted = rows(tmp_path / "set", "user")
    assert dict(zip(counted["user"].to_pylist(), counted["times"].to_pylist(), strict=True)) == Counter(
        table()["user"].to_pylist()
    )
    assert counted.column_names == ["user", "times"]
    assert manifest.skew <= 1.1


def test_combining_makes_what_is_shuffled_smaller(ratings: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    def add(key: int, rows: pa.Table) -> dict[str, list[int]]:
        return {"user": [key], "times": [pc.sum(rows["times"]).as_py()]}

    def reduced(key: int, rows: pa.Table) -> dict[str, list[int]]:
        seen.append(rows.num_rows)
        return add(key, rows)

    def one(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"user": batch["user"], "times": pa.array(np.ones(batch.num_rows, int))})

    step = JobStep.of(Job(map=one, key="user", combine=add, reduce=add, name="count"))
    step.__dict__["_job"] = Job(map=one, key="user", combine=add, reduce=reduced, name="count")
    prepare(ratings, tmp_path, job=step, partition="key:user", shards=2, engine=InProcess(), sizes=SMALL)
    assert max(seen) < 20  # a row for each run that has the key, not thousands
    assert sum(rows(tmp_path, "user")["times"].to_pylist()) == ROWS


def test_a_key_may_be_computed(ratings: Path, tmp_path: Path) -> None:
    job = Job(key=lambda batch: pc.utf8_slice_codeunits(batch["name"], 5, 6), name="first digit")
    here(ratings, tmp_path, job=job, partition="key", keep_keys=True)
    digits = [{name[5] for name in shard["name"].to_pylist()} for shard in shards(tmp_path)]
    assert sum(map(len, digits)) == len(set().union(*digits)) == 9
    assert rows(tmp_path).equals(table())


def test_a_map_may_return_several_batches_or_nothing(ratings: Path, tmp_path: Path) -> None:
    def twice_if_even(batch: pa.RecordBatch) -> object:
        even = batch.filter(pc.equal(pc.bit_wise_and(batch["id"], 1), 0))
        return [even, even] if even.num_rows else None

    here(ratings, tmp_path, job=twice_if_even)
    assert rows(tmp_path)["id"].to_pylist() == [row for row in range(0, ROWS, 2) for _ in range(2)]


def test_two_keys_with_one_hash_are_two_groups(ratings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few(values: pa.Array) -> np.ndarray:
        return hashing.hash_values(values) % np.uint64(7)

    monkeypatch.setattr(layout, "hash_values", few)
    (tmp_path / "job.py").write_text(COUNTS)
    here(ratings, tmp_path / "set", job=tmp_path / "job.py", partition="file")
    counted = rows(tmp_path / "set", "user")
    assert dict(zip(counted["user"].to_pylist(), counted["times"].to_pylist(), strict=True)) == Counter(
        table()["user"].to_pylist()
    )


def test_changes_are_seen_in_values_of_all_kinds() -> None:
    nan = float("nan")
    assert grouping.changes(pa.array([1, 1, None, None, 2])).tolist() == [False, True, False, True]
    assert grouping.changes(pa.array([nan, nan, 1.0])).tolist() == [False, True]
    assert grouping.changes(pa.array([[1], [1], [2]])).tolist() == [False, True]
    pairs = pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, None])
    assert grouping.changes(pairs).tolist() == [False, True, True]


def test_dedupe_keeps_the_first_of_each(ratings: Path, tmp_path: Path) -> None:
    here(ratings, tmp_path, job="dedupe:by=user", partition="key:user")
    first: dict[int, int] = {}
    for row, user in zip(table()["id"].to_pylist(), table()["user"].to_pylist(), strict=True):
        first.setdefault(user, row)
    assert rows(tmp_path)["id"].to_pylist() == sorted(first.values())


def test_dedupe_of_whole_rows(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("a,b\n1,x\n1,y\n1,x\n2,\n2,\n")
    here(tmp_path / "raw.csv", tmp_path / "set", job="dedupe", shards=1)
    assert {(row["a"], row["b"]) for row in rows(tmp_path / "set", "a").to_pylist()} == {(1, "x"), (1, "y"), (2, "")}
    assert rows(tmp_path / "set", "a").num_rows == 3


def test_normalise_over_the_whole_source(ratings: Path, tmp_path: Path) -> None:
    manifest = here(ratings, tmp_path, job=["convert:float64=user", "normalise:columns=score,user"], partition="key:id")
    scores = table()["score"].to_numpy()
    made = rows(tmp_path)
    assert made["score"].type == pa.float32()
    np.testing.assert_allclose(made["score"].to_numpy(), (scores - scores.mean()) / scores.std(), atol=1e-5)
    assert manifest.statistics["user"].mean == pytest.approx(0, abs=1e-6)
    assert manifest.statistics["user"].std == pytest.approx(1, abs=1e-6)
    learned = manifest.job["steps"][1]["learned"]["score"]
    assert learned["mean"] == pytest.approx(scores.mean())


def test_vocabulary_numbers_words_by_frequency(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("id,city,text\n1,Ulm,the Sea\n2,Bonn,the fish\n3,Ulm,\n4,Rom,the sea\n")
    manifest = here(
        tmp_path / "raw.csv",
        tmp_path / "set",
        job=["vocabulary:columns=city:size=2", "vocabulary:columns=text:split=yes"],
        shards=1,
    )
    made = rows(tmp_path / "set")
    assert made["city"].to_pylist() == [1, 2, 1, 0]
    assert made["text"].to_pylist() == [[1, 2], [1, 3], [], [1, 2]]
    assert manifest.job["steps"][0]["learned"] == {"city": [None, "Ulm", "Bonn"]}  # Rom is unknown


def test_labels_are_numbered_from_zero(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("id,kind,gap\n1,spam,a\n2,ham,\n3,spam,b\n4,spam,a\n")
    for options, labels, gaps in (
        ("", [0, 1, 0, 0], [1, 0, 2, 1]),  # only what can be unknown has a number for it
        (":unknown=yes", [1, 2, 1, 1], [1, 0, 2, 1]),
    ):
        job = f"vocabulary:columns=kind,gap{options}"
        here(tmp_path / "raw.csv", tmp_path / f"set{len(options)}", job=job, shards=1)
        made = rows(tmp_path / f"set{len(options)}")
        assert (made["kind"].to_pylist(), made["gap"].to_pylist()) == (labels, gaps)
    with pytest.raises(ConfigError, match=r"'gap' has 1 empty values.*--job fill:columns=gap:value=most-frequent"):
        here(tmp_path / "raw.csv", tmp_path / "no", job="vocabulary:columns=kind,gap:unknown=no", shards=1)


def test_gaps_are_filled(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("id,age,kind,x\n1,10,a,\n2,,b,1.5\n3,15,,2.5\n4,,b,nan\n")
    manifest = here(
        tmp_path / "raw.csv",
        tmp_path / "set",
        job=["fill:columns=age,x", "fill:columns=kind:value=most-frequent"],
        shards=1,
    )
    made = rows(tmp_path / "set").to_pydict()
    assert made == {
        "id": [1, 2, 3, 4],
        "age": [10, 12, 15, 12],
        "kind": ["a", "b", "b", "b"],
        "x": [2.0, 1.5, 2.5, 2.0],
    }
    assert manifest.job["steps"][0]["learned"] == {"age": 12.5, "x": 2.0}
    here(tmp_path / "raw.csv", tmp_path / "stated", job="fill:columns=age:value=-1", shards=1)
    assert rows(tmp_path / "stated")["age"].to_pylist() == [10, -1, 15, -1]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("fill:columns=kind", "has no mean"),
        ("fill:columns=age:value=old", "is no int64"),
        ("fill:columns=empty", "has no value at all"),
        ("fill:columns=agee", "did you mean 'age'"),
    ],
)
def test_what_cannot_be_filled_is_refused(job: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text(
        '{"age": 1, "kind": "a", "empty": null}\n{"age": null, "kind": "b", "empty": null}\n'
    )
    with pytest.raises(ConfigError, match=words):
        here(tmp_path / "raw.jsonl", tmp_path / "set", job=["convert:float64=empty", job], shards=1)


def test_images_of_all_sizes_become_one(tmp_path: Path) -> None:
    from PIL import Image

    for name, size in (("a.png", (40, 32)), ("b.jpg", (16, 20))):  # width, height
        (tmp_path / "raw" / "cat").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (200, 10, 10)).save(tmp_path / "raw" / "cat" / name)
    here(tmp_path / "raw", tmp_path / "set", job="resize:size=8x12", shards=1)
    images, _ = shoal.data.open(tmp_path / "set").fetch(np.arange(2), 0, 0)
    assert images.shape == (2, 3, 8, 12)
    assert abs(images[:, 0].float().mean() - 200) < 3
    with pytest.raises(ConfigError, match="such as 64x64"):
        here(tmp_path / "raw", tmp_path / "no", job="resize:size=8", shards=1)


def test_select_by_name_variance_and_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("id,flat,gaps,c\n1,5,,1\n2,5,,9\n3,5,7,4\n")
    here(tmp_path / "raw.csv", tmp_path / "a", job="select:variance=0:missing=0.5", shards=1)
    assert rows(tmp_path / "a").column_names == ["id", "c"]
    here(tmp_path / "raw.csv", tmp_path / "b", job="select:columns=c,id", shards=1)
    assert rows(tmp_path / "b").column_names == ["c", "id"]
    here(tmp_path / "raw.csv", tmp_path / "c", job="select:drop=flat", shards=1)
    assert rows(tmp_path / "c").column_names == ["id", "gaps", "c"]


def test_augment_draws_by_seed_and_row(ratings: Path, tmp_path: Path) -> None:
    def made(name: str, seed: int, way: str) -> pa.Table:
        job = f"augment:copies=2:noise=score:std=0.5:seed={seed}"
        here(ratings / "0.csv", tmp_path / name, job=job, partition=way)
        return rows(tmp_path / name).sort_by([("id", "ascending"), ("score", "ascending")])

    first = made("a", 1, "key:user")
    assert first.num_rows == 3 * PART
    assert made("b", 1, "file").equals(first)
    assert not made("c", 2, "file").equals(first)
    noise = np.concatenate([first["score"].to_numpy() - np.repeat(table()["score"].to_numpy()[:PART], 3)])
    assert noise[noise != 0].std() == pytest.approx(0.5, rel=0.05)


def test_a_folder_of_images_needs_no_code(tmp_path: Path) -> None:
    from PIL import Image

    for kind in ("cat", "dog"):
        (tmp_path / "raw" / kind).mkdir(parents=True)
        for number in range(3):
            pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "raw" / kind / f"{number}.png")
    here(tmp_path / "raw", tmp_path / "set", job="augment:copies=1:flip=image", partition="round-robin", shards=2)
    made = pa.concat_tables(shards(tmp_path / "set"))
    assert made.num_rows == 12
    assert Image.open(io.BytesIO(made["image"][0].as_py())).size == (8, 8)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("normalise:columns=nme", "did you mean 'name'"),
        ("normalise:columns=name", "not a number"),
        ("normalise:column=score", "did you mean 'columns'"),
        ("convert:flot32=score", "'flot32' is no type"),
        ("vocabulary", "needs columns"),
        ("select", "say what to keep"),
        ("augment", "say what to change"),
        ("augment:noise=score:copies=x", "give a number"),
        ("dedupe:id", "name=value"),
        (["dedupe", "dedupe:by=user"], "both reduce"),
        (["dedupe", "normalise:columns=score"], "put it before"),
    ],
)
def test_a_wrong_job_is_refused_with_what_to_do(ratings: Path, tmp_path: Path, job: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        here(ratings, tmp_path, job=job)


def test_a_job_with_another_text_is_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    marks = []
    for number in (1, 2):
        (tmp_path / "cleaning.py").write_text(f"def clean(batch):\n    return batch.slice({number * 10})\n")
        sys.modules.pop("cleaning", None)
        importlib.invalidate_caches()
        linecache.clearcache()
        marks.append(JobStep.of(Job(map=importlib.import_module("cleaning").clean)).describe())
    assert marks[0] != marks[1]


def test_what_reduce_raises_names_key_and_line(ratings: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("key = lambda batch: 'user'\ndef reduce(key, rows):\n    return 1 / 0\n")
    with pytest.raises(UserError, match=r"job.py: reduce\(\d+, .*ZeroDivisionError.*line 3"):
        here(ratings, tmp_path / "set", job=tmp_path / "job.py")


def test_a_map_that_returns_rubbish_is_told_what_to_return(ratings: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="returned int: return a pyarrow RecordBatch"):
        here(ratings, tmp_path / "set", job=lambda batch: 7)


def test_a_data_set_can_be_prepared_again(ratings: Path, tmp_path: Path) -> None:
    here(ratings, tmp_path / "first", partition="key:user")
    here(tmp_path / "first", tmp_path / "second", partition="range:id")
    assert rows(tmp_path / "second").equals(table())
    assert pq.read_table(tmp_path / "second").num_rows == ROWS
