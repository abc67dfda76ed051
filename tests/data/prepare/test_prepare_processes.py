"""Real processes and real signals: a killed job leaves no data set and goes on, a killed worker is replaced."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from prepared_rows import SMALL, names, rows, table

from shoal.core.errors import UserError
from shoal.data import Job, prepare
from shoal.data.places import Place
from shoal.data.preparing.engine import ATTEMPTS, NothingEnds, TaskFailed
from shoal.data.preparing.local import LocalEngine
from shoal.data.preparing.task import Result, Task

pytestmark = pytest.mark.ranks

DEADLINE_S = 60.0
ASKED_BYTES = 448 << 20  # the least that is accepted


def wait_until(true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < until, f"waited too long for {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def process(*words: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def command(*words: object) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return process("-m", "shoal", "prepare", *words)


def receipts(dest: Path) -> int:
    return len(list((dest / "_work").glob("*/*.json")))


PROGRAM = """
import signal, sys
from shoal.data import prepare
from shoal.data.preparing.progress import Progress
from shoal.data.preparing.sizes import Sizes

class Said(Progress):
    seen = 0

    def advance(self, tasks, rows, nbytes, *, done_before=False):
        print("before" if done_before else "done", flush=True)
        self.seen += 1
        if self.seen == hold:
            signal.pause()  # to be killed

source, dest, job, hold = *sys.argv[1:4], int(sys.argv[4])
prepare(source, dest, job=job, partition="key:user", shards=4, processes=2, progress=Said(),
        sizes=Sizes(block_bytes=32 << 10, run_bytes=32 << 10, piece_bytes=24 << 10))
"""


@pytest.mark.parametrize("tasks", [3, 17])
def test_killed_half_way_it_leaves_no_data_set_and_goes_on_where_it_was(
    ratings: Path, tmp_path: Path, tasks: int
) -> None:
    dest = tmp_path / "set"
    (tmp_path / "job.py").write_text("import time\ndef map(batch):\n    time.sleep(0.05)\n    return batch\n")
    words = ("-c", PROGRAM, ratings, dest, tmp_path / "job.py")
    with process(*words, tasks) as first:
        wait_until(lambda: receipts(dest) >= tasks, f"{tasks} tasks to be done")
        workers = psutil.Process(first.pid).children()
        assert workers
        first.kill()
        first.wait()
        wait_until(lambda: not any(one.is_running() for one in workers), "the workers to end with their parent")
    done = receipts(dest)
    assert not (dest / "_manifest.json").exists()
    for shard in dest.glob("*.parquet"):
        pq.read_table(shard)  # whole, if it is there at all
    with process(*words, 0) as second:
        output, errors = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 0, errors
    assert output.split().count("before") == done
    assert rows(dest).equals(table())
    assert {name for name in names(dest) if not name.startswith("part-")} == {"_manifest.json"}


def test_a_second_one_at_the_same_place_is_told_of_the_first(ratings: Path, tmp_path: Path) -> None:
    dest, may_go = tmp_path / "set", tmp_path / "go"
    (tmp_path / "job.py").write_text(
        f"import os, time\ndef map(batch):\n    while not os.path.exists({str(may_go)!r}):\n        time.sleep(0.01)\n"
        "    return batch\n"
    )
    with command(ratings, dest, "--job", tmp_path / "job.py") as first:
        wait_until((dest / "_work" / ".lock").exists, "the first to begin")
        for more in ((), ("--job", tmp_path / "job.py"), ("--work", tmp_path / "elsewhere")):
            with command(ratings, dest, *more) as second:
                _, errors = second.communicate(timeout=DEADLINE_S)
            assert second.returncode == 2
            assert f"{dest} is being prepared already, by process {first.pid}" in " ".join(errors.split())
        may_go.touch()
        _, errors = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 0, errors
    assert rows(dest).equals(table())
    assert {name for name in names(dest) if not name.startswith("part-")} == {"_manifest.json"}


def test_a_job_that_fails_keeps_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "job.py").write_text("def map(batch):\n    raise ValueError('no')\n")
    with pytest.raises(UserError):
        prepare(tmp_path / "a.csv", tmp_path / "made" / "set", job=tmp_path / "job.py")
    assert not list(tmp_path.rglob(".lock"))
    prepare(tmp_path / "a.csv", tmp_path / "made" / "set")


def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(ratings: Path, tmp_path: Path) -> None:
    dest = tmp_path / "set"
    (tmp_path / "job.py").write_text(
        "import pathlib, time\ndef map(batch):\n"
        f"    pathlib.Path({str(tmp_path / 'began')!r}).touch()\n    time.sleep(60)\n"
    )
    with command(ratings, dest, "--job", tmp_path / "job.py", "--shards", 2) as started:
        wait_until((tmp_path / "began").exists, "a task to begin")
        workers = psutil.Process(started.pid).children()
        started.send_signal(signal.SIGINT)
        _, errors = started.communicate(timeout=DEADLINE_S)
    assert started.returncode == 130
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    assert not any(one.is_running() for one in workers)
    assert not (dest / "_manifest.json").exists()


def _kill_itself_once(marker: str) -> Callable[[object], object]:
    def mapped(batch: object) -> object:
        with contextlib.suppress(FileExistsError):
            Path(marker).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return mapped


def test_a_task_whose_process_is_killed_is_done_by_another(ratings: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with LocalEngine(2, said.append) as engine:
        prepare(
            ratings,
            tmp_path / "set",
            job=Job(map=_kill_itself_once(str(tmp_path / "marker")), name="shot"),
            partition="key:user",
            shards=3,
            engine=engine,
            sizes=SMALL,
        )
    assert rows(tmp_path / "set").equals(table())
    assert len(said) == 1
    assert "was killed by SIGKILL" in said[0]


@dataclass(frozen=True)
class Failing(Task):
    """Fails so many times."""

    times: int = 0
    refuses: bool = False

    def run(self) -> Result:
        tried = self.work / "tried"
        count = int(tried.read()) if tried.exists() else 0
        tried.write(str(count + 1).encode())
        if self.refuses:
            raise UserError("not with me")
        if count < self.times:
            raise OSError(f"the disk is having a bad day, number {count}")
        return {"tries": count + 1}


def test_a_task_that_fails_is_tried_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    with LocalEngine(1, said.append) as engine:
        good = Failing("good", Place.of(tmp_path / "good"), times=2)
        assert list(engine.run([good])) == [(0, {"tries": 3})]
        assert list(engine.run([good])) == [(0, {"tries": 3})]  # not done again: its receipt is there
        assert len(said) == 2
        with pytest.raises(TaskFailed, match=rf"(?s)bad failed {ATTEMPTS} times.*number 3"):
            list(engine.run([Failing("bad", Place.of(tmp_path / "bad"), times=9)]))
        with pytest.raises(UserError, match="not with me"):
            list(engine.run([Failing("refused", Place.of(tmp_path / "refused"), refuses=True)]))
    assert (tmp_path / "refused" / "tried").read_text() == "1"


@dataclass(frozen=True)
class Endless(Task):
    def run(self) -> Result:
        threading.Event().wait()
        return {}


def test_tasks_of_which_nothing_is_heard_are_named_and_ended(tmp_path: Path) -> None:
    with LocalEngine(2, lambda words: None) as engine:
        engine.silence_s = 0.5
        with pytest.raises(NothingEnds, match=r"nothing was heard for 0.5 s of a, b: see what they wait for") as raised:
            list(engine.run([Endless(name, Place.of(tmp_path)) for name in "abc"]))
        assert "The same command goes on" in str(raised.value)
        assert engine.pids == []


@dataclass(frozen=True)
class Full(Task):
    """Works where the disk is full."""

    def run(self) -> Result:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_at_once_with_what_to_do(tmp_path: Path) -> None:
    said: list[str] = []
    with LocalEngine(1, said.append) as engine, pytest.raises(UserError, match="--work DIR"):
        list(engine.run([Full("full", Place.of(tmp_path))]))
    assert said == []


def test_a_bad_record_stops_the_command_with_status_2_and_one_message(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("id,value\n" + "".join(f"{row},1\n" for row in range(50)) + "50,x\n")
    with command(tmp_path / "raw.csv", tmp_path / "set") as started:
        output, errors = started.communicate(timeout=DEADLINE_S)
    assert started.returncode == 2
    assert f"bad record in {tmp_path / 'raw.csv'} at offset 249: column 'value'" in errors
    assert "Traceback" not in errors
    assert output == ""
    assert not (tmp_path / "set" / "_manifest.json").exists()


def peak_bytes(source: Path, dest: Path) -> int:
    """Of all processes of the command together."""
    peak = 0
    with command(source, dest, "--partition", "key:user", "--shards", 4, "--memory", ASKED_BYTES, "--json") as started:
        leader = psutil.Process(started.pid)
        while started.poll() is None:
            with contextlib.suppress(psutil.Error):
                peak = max(peak, sum(one.memory_info().rss for one in (leader, *leader.children())))
            time.sleep(0.02)
        assert started.returncode == 0, started.stderr
    return peak


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    part = table(50_000).append_column("text", pa.array([f"{row:0500}" for row in range(50_000)]))
    for name, rows_of_each in (("some", 10_000), ("more", 50_000)):
        (tmp_path / name).mkdir()
        for number in range(8):
            pc.write_csv(part.slice(0, rows_of_each), tmp_path / name / f"{number}.csv")
    some = peak_bytes(tmp_path / "some", tmp_path / "set of some")
    more = peak_bytes(tmp_path / "more", tmp_path / "set of more")
    grown = 8 * part.nbytes * 4 / 5
    assert more < ASKED_BYTES
    assert more - some < grown / 2, f"{some >> 20} MiB for a fifth of the data, {more >> 20} MiB for all"
