"""Shoal as a user meets it: commands in, a status and words out; and what must not be there afterwards."""

from __future__ import annotations

import glob
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import shoal.cli.main
from shoal.launch.nursery import Nursery
from shoal.launch.reaper import STANDING

ROOT = Path(__file__).parents[2]
DEADLINE_S = 180.0
START_AND_END_S = 40.0  # of a run that fails: 5 s for the end, as the launcher promises, the rest for a busy machine


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str
    seconds: float

    def message(self) -> str:
        """The one message of a user's mistake, once it is sure that it is one."""
        assert self.status == 2, self
        assert "Traceback" not in self.err + self.out
        assert '  File "' not in self.err + self.out
        assert self.err.startswith("shoal: error: "), self
        assert self.err.count("shoal: ") == 1, self
        return self.err.removeprefix("shoal: error: ").rstrip("\n")


class Run:
    """What a run directory says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "summary.json").read_text()))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All events of a kind. Every line must be whole but the last, which may just be being written."""
        try:
            lines = (self.path / "events.jsonl").read_text().rpartition("\n")[0].splitlines()
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["kind"])]

    def names(self) -> list[str]:
        """The checkpoints, oldest first, and whatever else lies among them."""
        return sorted(entry.name for entry in self.checkpoints.iterdir())

    def outcome(self) -> tuple[str, dict[str, int]]:
        """What two runs that were the same must agree on: the bits of the parameters, and the coverage."""
        summary = self.summary()
        assert summary["status"] == "completed", summary
        coverage = summary["coverage"]
        assert coverage["once"] == coverage["expected"] == summary["samples"]
        assert coverage["missed"] == coverage["repeated"] == 0
        return summary["params_sha256"], coverage


class Shoal:
    """``shoal train`` in the directory of a test, but without waiting for ``import torch``: the command line runs in
    this process, the workers are forked from a zygote that all tests share."""

    def __init__(self, directory: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._capture = capture
        self.run = Run(directory / "run")

    def write(self, text: str, name: str = "script.py") -> None:
        (self.directory / name).write_text(text)

    def train(self, *words: str, script: str = "script.py") -> Done:
        self._capture.readouterr()
        begun = time.monotonic()
        status = shoal.cli.main.main(["train", script, *words])
        seconds = time.monotonic() - begun
        out, err = self._capture.readouterr()
        return Done(status, out, err, seconds)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")}


class KeptNursery(Nursery):
    """A zygote that outlives a launch: a command then starts in no time."""

    def wait_until_ready(self) -> None:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000), "the zygote was not ready in time"
        self.events()

    def close(self, deadline_s: float = 8.0) -> None:
        pass

    def really_close(self) -> None:
        super().close()


def environment(temporary: Path, **more: str) -> dict[str, str]:
    """What a real process of a test gets: temporary files go where they are seen."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": str(temporary.parent / "torch"),
        **more,
    }


class Process:
    """A real command in a process group of its own, as a shell would start it. Use in a ``with`` statement."""

    def __init__(self, words: list[str], directory: Path, given: Mapping[str, str], stdin: str | None = None) -> None:
        self._errors = (directory / f".stderr-{time.monotonic_ns()}").open("w+")
        self._begun = time.monotonic()
        self._stdin = stdin
        self._process = subprocess.Popen(
            words,
            cwd=directory,
            env=dict(given),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            process_group=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def err(self) -> str:
        return Path(self._errors.name).read_text()

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self, deadline_s: float = DEADLINE_S) -> Done:
        out, _ = self._process.communicate(self._stdin, timeout=deadline_s)
        return Done(self._process.returncode, out, self.err, time.monotonic() - self._begun)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running():
            self._process.kill()
        self._process.communicate(timeout=DEADLINE_S)
        self._errors.close()
        Path(self._errors.name).unlink(missing_ok=True)


def shoal_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "shoal", "train", *words]


def begun(nursery: Nursery) -> set[int]:
    """All processes that were started by a nursery and are still there, zombies included."""
    return {pid for pid in descendants(nursery.pid) if _name(pid) not in STANDING}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has just ended
        return STANDING[0]


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, zombies included."""
    found: set[int] = set()
    for task in glob.glob(f"/proc/{pid}/task/*/children"):  # noqa: PTH207 - Path.glob fails where a process ends under it
        try:
            children = {int(child) for child in Path(task).read_text().split()}
        except OSError:
            continue
        found |= children
        for child in children:
            found |= descendants(child)
    return found


def eventually(condition: Callable[[], Any], deadline_s: float = 120.0) -> Any:
    """Return what `condition` gives as soon as that is true; fail after the deadline."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"did not come true within {deadline_s} s"
        time.sleep(0.002)
    return value
