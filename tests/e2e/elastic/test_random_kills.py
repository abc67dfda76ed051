"""Workers killed at random moments, again and again, in one run: it completes, exactly."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import ROOT, Process, Run
from self_hurt import assert_same

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

LONGEST_PAUSE_S = 0.12  # between the sign that training goes on and the next kill
DEADLINE_S = 240.0


class Killer:
    """Kills workers of the run in `run` that `training` trains, never the last one that has the model."""

    def __init__(self, training: Process, run: Run, seed: int) -> None:
        self._training, self._run, self._draw = training, run, random.Random(seed)
        self.kills = 0
        self._read, self._steps, self._pids = 0, 0, list[int]()
        self._killed: set[int] = set()  # on a busy machine they may live a while longer

    def kill(self, times: int) -> None:
        until = time.monotonic() + DEADLINE_S
        seen = 0
        while self.kills < times and self._training.running():
            assert time.monotonic() < until, f"only {self.kills} of {times} kills"
            steps, pids = self._position()
            if steps <= seen or len(pids) < 2:
                time.sleep(0.005)
                continue
            seen = steps
            time.sleep(self._draw.uniform(0.0, LONGEST_PAUSE_S))  # any moment will do: nothing is waited for
            steps, pids = self._position()
            alive = [pid for pid in pids if pid not in self._killed and _alive(pid)]
            if len(alive) < 2:
                continue
            victim = self._draw.choice(alive)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                self._killed.add(victim)
                self.kills += 1

    def _position(self) -> tuple[int, list[int]]:
        """How many steps were committed, and who is in the newest view."""
        with contextlib.suppress(FileNotFoundError), (self._run.path / "events.jsonl").open() as events:
            events.seek(self._read)
            for line in events:
                if not line.endswith("\n"):
                    break
                self._read += len(line)
                self._steps += '"kind":"step"' in line
                if '"kind":"view"' in line:
                    self._pids = json.loads(line)["pids"]
        return self._steps, self._pids


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def survive(
    shoal_process: Callable[..., Process], directory: Path, kills: int, script: str, words: list[str], own: list[str]
) -> None:
    """An example gives the same model whether workers are killed or not."""
    command = [str(ROOT / "examples" / script), *words, "--set", "eval_every='10 epochs'"]
    rest = ["--", *own] if own else []
    calm = Run(directory / "calm")
    done = shoal_process(*command, "--run-dir", str(calm.path), *rest).end()
    assert done.status == 0, done.err
    run = Run(directory / "hurt")
    training = shoal_process(*command, "--run-dir", str(run.path), "--max-restarts", "1000", *rest)
    killer = Killer(training, run, seed=7)
    killer.kill(kills)
    done = training.end()
    assert done.status == 0, done.err[-4000:]
    assert_same(run, calm)
    assert killer.kills == kills, "the run was over before all kills"
    assert len(run.summary()["faults"]) >= kills * 0.9  # who had ended anyway is no fault


def test_a_hundred_kills_of_the_digits(tmp_path: Path, shoal_process: Callable[..., Process]) -> None:
    survive(shoal_process, tmp_path, 100, "digits.py", ["--workers", "4", "--epochs", "50"], [])


def test_twenty_kills_of_the_resnet(tmp_path: Path, shoal_process: Callable[..., Process]) -> None:
    _images(tmp_path)
    own = ["--data", str(tmp_path), "--depth", "8", "--global-batch", "16", "--epochs", "9"]
    survive(shoal_process, tmp_path, 20, "cifar10_resnet.py", ["--workers", "3"], own)


def test_twenty_kills_of_the_gpt(tmp_path: Path, shoal_process: Callable[..., Process]) -> None:
    draw = random.Random(3)
    (tmp_path / "text").write_text("".join(draw.choice("abcdefgh \n") for _ in range(6000)))
    own = ["--data", str(tmp_path / "text"), "--layers", "1", "--heads", "2", "--width", "16", "--context", "16"]
    own += ["--global-batch", "16", "--epochs", "4"]
    survive(shoal_process, tmp_path, 20, "shakespeare_gpt.py", ["--workers", "3"], own)


def _images(directory: Path) -> None:
    """A tiny CIFAR, each image of one colour."""
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    for name, samples in (("train", 160), ("test", 16)):
        jpegs = []
        for number in range(samples):
            file = io.BytesIO()
            Image.new("RGB", (32, 32), (200, 100, number)).save(file, "JPEG", quality=95)
            jpegs.append(file.getvalue())
        labels = pyarrow.array([number % 10 for number in range(samples)], pyarrow.int8())
        table = pyarrow.table({"image": pyarrow.array(jpegs, pyarrow.binary()), "label": labels})
        parquet.write_table(table, directory / f"{name}.parquet")
