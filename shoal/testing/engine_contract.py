"""What every engine of `shoal prepare` promises, as tests. An engine's test class inherits them and says which it is::

class TestMine(EngineContract):
    @pytest.fixture(scope="class")
    def engine(self) -> Engine:
        return MyEngine()

    @pytest.fixture
    def made_by(self) -> tuple[str, str]:  # how another process makes one like it: what to import, and the call
        return "from mine import MyEngine", "MyEngine()"

    @pytest.fixture
    def place(self, hdfs: str) -> str:  # where files are read and written
        return hdfs
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import UserError
from shoal.data.manifest import NAME, Manifest
from shoal.data.places import Place
from shoal.data.preparing.engine import ATTEMPTS, Engine, InProcess, TaskFailed
from shoal.data.preparing.prepare import Prepared, prepare
from shoal.data.preparing.progress import Progress
from shoal.data.preparing.rejects import FILE
from shoal.data.preparing.task import Result, Task

MEMORY = "128MiB"  # so little that a task reads 1 MiB: there are several
_ROWS = 60_000
_DEADLINE_S = 120.0
_JOB = """
import os, pathlib, time
import pyarrow as pa, pyarrow.compute as pc

def map(batch):
    first = batch["row"][0].as_py()
    pathlib.Path({folder!r}, f"mapped-{{first}}-{{os.getpid()}}-{{time.monotonic_ns()}}").touch()
    while first > {gate} and not pathlib.Path({folder!r}, "open").exists():
        time.sleep(0.02)
    if {fails}:
        raise ValueError("no such thing as a bargain")
    return batch.append_column("cents", pc.cast(pc.round(pc.multiply(batch["price"], 100)), pa.int64()))

def key(batch):
    return "user"

def reduce(key, rows):
    return {{"user": [key], "rows": [rows.num_rows], "cents": [pc.sum(rows["cents"]).as_py()]}}
"""


@dataclass(frozen=True)
class _Plain(Task):
    """Answers with its number."""

    number: int

    def run(self) -> Result:
        return {"number": self.number, "pid": os.getpid()}


@dataclass(frozen=True)
class _Failing(Task):
    """Raises."""

    refuses: bool

    def run(self) -> Result:
        if self.refuses:
            raise UserError("the column price is missing: name another")
        raise RuntimeError("the disk is on fire")


@dataclass(frozen=True)
class _DiesOnce(Task):
    """Kills its process, the first time."""

    folder: str

    def run(self) -> Result:
        try:
            Path(self.folder, "died").touch(exist_ok=False)
        except FileExistsError:
            return {"lives": True}
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


class Telling(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, words: str) -> None:
        self.said.append(words)


class EngineContract:
    """Give `engine`, `made_by` and, unless it is a folder here, `place`."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return str(tmp_path / "data")

    @pytest.fixture
    def work(self, tmp_path: Path) -> Place:
        return Place.of(tmp_path / "tasks")

    @pytest.fixture
    def source(self, place: str) -> str:
        """Two files of CSV, with a broken record in each."""
        lines = [f"{row},user{row % 97},{row % 1009 / 4},{'x' * 40}" for row in range(_ROWS)]
        lines[1000], lines[-1] = "1000,user30,a lot," + "x" * 40, f"{_ROWS - 1},user54"
        head, half = "row,user,price,note\n", _ROWS // 2
        for name, part in (("a.csv", lines[:half]), ("b.csv", lines[half:])):
            (Place.of(place) / "raw" / name).write((head + "\n".join(part) + "\n").encode())
        return f"{place}/raw"

    # ---- tasks

    def test_each_task_is_answered_once_under_its_number(self, engine: Engine, work: Place) -> None:
        tasks = [_Plain(f"plain-{number}", work, number) for number in range(9)]
        answers = list(engine.run(tasks))
        assert sorted(number for number, _ in answers) == list(range(9))
        assert all(result["number"] == number for number, result in answers)
        assert os.getpid() not in {result["pid"] for _, result in answers}
        assert list(engine.run(tasks[:1])) == [(0, dict(answers)[0])]  # from its receipt; and the engine goes on

    def test_a_mistake_of_the_users_is_raised_at_once_as_it_is(self, engine: Engine, work: Place) -> None:
        with pytest.raises(UserError) as raised:
            list(engine.run([_Failing("failing", work, refuses=True)]))
        assert str(raised.value) == "the column price is missing: name another"

    def test_a_task_that_fails_is_tried_again_and_then_named(self, engine: Engine, work: Place) -> None:
        with pytest.raises(TaskFailed) as raised:
            list(engine.run([_Failing("failing", work, refuses=False)]))
        words = str(raised.value)
        assert words.startswith(f"failing failed {ATTEMPTS} times; the last time: RuntimeError: the disk is on fire")

    def test_a_task_whose_process_is_killed_is_done_again(self, engine: Engine, work: Place, tmp_path: Path) -> None:
        tasks = [_DiesOnce("dies", work, str(tmp_path)), _Plain("plain", work, 7)]
        answers = dict(engine.run(tasks))
        assert answers[0] == {"lives": True}
        assert answers[1]["number"] == 7
        assert (tmp_path / "died").exists()

    def test_it_can_be_used_again_after_it_was_broken_off(self, engine: Engine, work: Place) -> None:
        running = engine.run([_Plain(f"first-{number}", work, number) for number in range(5)])
        next(running)
        running.close()  # type: ignore[attr-defined]  # it is a generator
        assert len(list(engine.run([_Plain(f"then-{number}", work, number) for number in range(3)]))) == 3

    # ---- data sets

    def test_reducing_by_key_gives_the_same_shards_as_anywhere(
        self, engine: Engine, place: str, source: str, tmp_path: Path
    ) -> None:
        job = write_job(tmp_path)
        settings: dict[str, Any] = {"job": job, "partition": "key", "shards": 3, "bad_records": "reject"}
        made = prepare(source, f"{place}/set", engine=engine, memory=MEMORY, **settings)
        expected = prepare(source, tmp_path / "expected", engine=InProcess(), memory=MEMORY, **settings)
        assert made.manifest.rejected == 2
        assert made.source_rows == _ROWS
        assert_same(made, expected)
        rejects = Place.of(place) / "set" / FILE
        assert sorted(rejects.read().splitlines()) == sorted((tmp_path / "expected" / FILE).read_bytes().splitlines())
        assert [
            entry.place.name for entry in (Place.of(place) / "set").files() if entry.place.name.startswith("part")
        ] == [shard.file for shard in made.manifest.shards]

    def test_a_shuffle_by_ranges_gives_the_same_shards_as_anywhere(
        self, engine: Engine, place: str, source: str, tmp_path: Path
    ) -> None:
        settings: dict[str, Any] = {"partition": "range:price", "shards": 3, "bad_records": "reject"}
        made = prepare(source, f"{place}/set", engine=engine, memory=MEMORY, **settings)
        expected = prepare(source, tmp_path / "expected", engine=InProcess(), memory=MEMORY, **settings)
        assert made.manifest.rows == _ROWS - 2
        assert_same(made, expected)

    def test_a_job_that_raises_is_one_message_and_no_data_set(self, engine: Engine, place: str, tmp_path: Path) -> None:
        source = Place.of(place) / "raw.csv"
        source.write(b"row,user,price,note\n0,ann,1.5,x\n1,bob,2.5,x\n")
        job = write_job(tmp_path, fails=True)
        with pytest.raises(UserError, match="no such thing as a bargain") as raised:
            prepare(source.url, f"{place}/set", job=job, partition="key", engine=engine, shards=1)
        assert job in str(raised.value)
        assert source.url in str(raised.value)
        assert "Traceback" not in str(raised.value)
        assert not (Place.of(place) / "set" / NAME).exists()

    def test_killed_half_way_it_leaves_no_data_set_and_goes_on_where_it_was(
        self, engine: Engine, made_by: tuple[str, str], place: str, source: str, tmp_path: Path
    ) -> None:
        settings: dict[str, Any] = {
            "job": write_job(tmp_path, gate=_ROWS // 2),
            "partition": "key",
            "shards": 2,
            "bad_records": "reject",
            "memory": MEMORY,
        }
        work, (needed, made_so) = tmp_path / "work", made_by
        script = (
            f"{needed}\nfrom shoal.data.preparing.prepare import prepare\n"
            f"prepare({source!r}, {place + '/set'!r}, engine={made_so}, work={str(work)!r}, **{settings!r})\n"
        )
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # what it leaves when it is killed goes with the test
        with subprocess.Popen([sys.executable, "-c", script], env=environment) as process:
            wait_for(lambda: bool(list(work.glob("*/*/map-00000.json"))), process)
            process.send_signal(signal.SIGKILL)
        assert not (Place.of(place) / "set" / NAME).exists()
        (tmp_path / "open").touch()
        telling = Telling()
        made = prepare(source, f"{place}/set", engine=engine, work=work, progress=telling, **settings)
        assert "going on where it was broken off" in telling.said
        assert len(list(tmp_path.glob("mapped-0-*"))) == 1  # the first rows were not mapped again
        assert_same(made, prepare(source, tmp_path / "expected", engine=InProcess(), **settings))
        assert not list(work.glob("*/*"))


def write_job(folder: Path, *, gate: int = _ROWS, fails: bool = False) -> str:
    """A file with a job that notes in `folder` what it maps, and waits there with rows from `gate` on until it is told
    to go on."""
    path = folder / "job.py"
    path.write_text(_JOB.format(folder=str(folder), gate=gate, fails=fails))
    return str(path)


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _DEADLINE_S
    while not happened():
        assert process.poll() is None, "it has ended by itself"
        assert time.monotonic() < until, f"nothing within {_DEADLINE_S:.0f} s"
        time.sleep(0.02)


def assert_same(made: Prepared, expected: Prepared) -> None:
    """The same rows in the same shards, and the same said of them, but for what depends on the order inside a shard."""
    assert shards_of(made) == shards_of(expected)
    assert comparable(made.manifest) == comparable(expected.manifest)
    statistics = expected.manifest.statistics
    assert set(made.manifest.statistics) == set(statistics)
    for column, found in made.manifest.statistics.items():
        for name, value in found:  # sums over rows in another order differ in the last digits
            other = getattr(statistics[column], name)
            assert value == other or math.isclose(value, other, rel_tol=1e-9), (column, name, value, other)


def shards_of(prepared: Prepared) -> list[list[tuple[Any, ...]]]:
    """The rows of each shard, sorted."""
    import pyarrow.parquet as pq

    found = []
    for shard in prepared.manifest.shards:
        with (prepared.place / shard.file).open() as file:
            columns = pq.read_table(file).to_pydict()
        found.append(sorted(zip(*columns.values(), strict=True)))
    return found


def comparable(manifest: Manifest) -> dict[str, Any]:
    """What does not depend on the order of rows inside a shard, nor on where the data set lies."""
    plain = manifest.model_dump(exclude={"bytes", "statistics"})
    plain["shards"] = [{"rows": shard["rows"], "keys": shard["keys"]} for shard in plain["shards"]]
    return plain
