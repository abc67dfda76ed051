"""`shoal kvstore`: its help teaches, mistakes are one message, and what it starts works and ends."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cli.main import main
from shoal.core.consistency import consistencies
from shoal.store.errors import WorkersBehind
from shoal.store.kvstore import KVStore

DEADLINE_S = 120.0


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kvstore", "--help"]) == 0
    said = capsys.readouterr().out
    for words in ("Examples", "shoal kvstore --servers 2 --replicas 2", "shoal.KVStore(DIR)", "docs/kvstore.md"):
        assert words in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--servers", "0"), "0 servers"),
        (("--replicas", "3"), "1 or 2 replicas, not 3"),
        (("--encrypt", "maybe"), "--encrypt maybe: give auto, on or off"),
        (("--snapshot", "-1"), "snapshots every -1.0 s"),
        (("--listen", "203.0.113.9"), "is not an address of this host"),
        (("--listen", "127.0.0.1:99999"), "no port"),
        (("--servers", "two"), "Invalid value for '--servers'"),
        (("--dir", "file/below"), "file/below"),
    ],
)
def test_mistakes(
    given: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["kvstore", *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("shoal: error: ")
    assert words in error
    assert not (tmp_path / "kvstore").exists()


@contextlib.contextmanager
def running(directory: Path, *words: str) -> Iterator[dict[str, Any]]:
    """The command until Ctrl-C; yields the line of JSON that it prints."""
    command = [sys.executable, "-m", "shoal", "kvstore", "--dir", str(directory), "--json", *words]
    environment = {**os.environ, "PYTHONPATH": str(directory.parent)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            yield json.loads(line)
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            process.kill()
            raise
        assert process.returncode == 0, errors
        assert rest == ""


def test_in_the_background_of_a_script_an_interrupt_is_ignored(tmp_path: Path) -> None:
    """There SIGINT is ignored, as by all that the shell starts with `&`: it is meant for others. SIGTERM ends it."""
    words = [sys.executable, "-m", "shoal", "kvstore", "--dir", str(tmp_path / "store"), "--json"]
    with subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()  # it is ready
            status = dict(line.split(":\t") for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
            assert int(status["SigIgn"], 16) >> (signal.SIGINT - 1) & 1
            process.terminate()
            errors = process.communicate(timeout=DEADLINE_S)[1]
        finally:
            process.kill()
    assert process.returncode == 0, errors


def test_servers_start_serve_end_and_come_back_with_what_they_held(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    (tmp_path / "halving.py").write_text(
        "from dataclasses import dataclass\n"
        "from shoal.store.updaters import Updater, updaters\n\n"
        "@updaters.add('halve')\n@dataclass(frozen=True)\nclass Halve(Updater):\n"
        "    def update(self, values, gradient, state, rate, rows=None):\n"
        "        values[...] = values / 2\n"
    )
    with running(directory, "--servers", "2", "--snapshot", "600", "--plugin", "halving") as told:
        assert len(told["servers"]) == 2
        assert all(address.startswith("127.0.0.1:") for server in told["servers"] for address in server)
        assert Path(told["key"]).stat().st_mode & 0o077 == 0
        with KVStore(told["dir"]) as store:
            store.set("x", np.arange(100_000.0))
            store.declare("y", (10,), updater="halve")
            store.set("y", np.full(10, 8, np.float32))
            assert (store.push_pull("y", np.zeros(10, np.float32)) == 4).all()
        assert main(["kvstore", "--dir", str(directory)]) == 2  # it is in use
    assert not Path(told["key"]).exists()
    with (
        running(directory, "--servers", "2", "--snapshot", "600", "--plugin", "halving") as told,
        KVStore(directory) as store,
    ):
        np.testing.assert_array_equal(store.get("x"), np.arange(100_000.0))
        assert (store.get("y") == 4).all()


def test_a_consistency_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "doubling.py"
    plugin.write_text(
        "from dataclasses import dataclass\n"
        "from shoal.core.consistency import Consistency, consistencies\n\n"
        "@consistencies.add('double')\n@dataclass(frozen=True)\nclass Double(Consistency):\n"
        "    half: int\n"
        "    bound = property(lambda self: 2 * self.half)\n"
        "    def __str__(self):\n"
        "        return f'double:{self.half}'\n"
        "    @classmethod\n"
        "    def from_argument(cls, argument):\n"
        "        return cls(int(argument))\n"
    )
    monkeypatch.setattr(consistencies, "_entries", consistencies._entries.copy())  # other tests do not know it
    runpy.run_path(str(plugin))

    def store(worker: int) -> contextlib.closing[KVStore]:
        return contextlib.closing(
            KVStore(directory, worker=worker, workers=2, consistency="double:1", deadline_s=DEADLINE_S)
        )

    directory = tmp_path / "store"
    with running(directory, "--plugin", "doubling"), store(0) as quick, store(1) as slow:
        quick.declare("x", (3,), updater="add")
        for _ in range(1 + 2):  # up to two rounds ahead it may begin another
            quick.pull("x")
            quick.push("x", np.ones(3))
            quick.tick()
        with pytest.raises(WorkersBehind, match="worker 1"):
            quick.pull("x", deadline_s=1.0)
        slow.tick()
        assert (quick.pull("x") == 3).all()


def test_the_example_finds_the_same_clusters_with_any_number_of_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).parents[2] / "examples" / "kvstore_kmeans.py"
    spec = importlib.util.spec_from_file_location("example_kvstore_kmeans", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = []
    with running(tmp_path / "store", "--servers", "2") as told:
        for workers in (1, 3):  # one after the other on the same servers, as people would
            options = argparse.Namespace(
                workers=workers, points=3000, dimensions=4, clusters=5, rounds=4, seed=0, json=True
            )
            with ThreadPoolExecutor(workers) as pool:
                for future in [pool.submit(example.work, number, told["dir"], options) for number in range(workers)]:
                    future.result(DEADLINE_S)
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert [line["round"] for line in lines] == [0, 1, 2, 3]
            found.append([line["mean_squared_distance"] for line in lines])
    assert found[0][-1] < found[0][0]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)
