"""Workers killed at random moments, again and again, in one run: it completes, exactly."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import ROOT, Process, Run, Shoal
from self_hurt import assert_same

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

LONGEST_PAUSE_S, LONGEST_PAUSE_STEPS = 0.12, 2  # between the sign that training goes on and the next kill
DEADLINE_S = 240.0


class Killer:
    """Kills workers of the run in `run` that `training` trains, one or all but one at a time, never the last one that
    has the model."""

    def __init__(self, training: Process, run: Run, seed: int) -> None:
        self._training, self._run, self._draw = training, run, random.Random(seed)
        self.kills = 0
        self._read, self._steps, self._pids = 0, 0, list[int]()
        self._have_model: set[int] = set()  # who has been in a view that took a step
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
            over_s = time.monotonic() + self._draw.uniform(0.0, LONGEST_PAUSE_S)  # any moment will do
            while time.monotonic() < over_s and steps < seen + LONGEST_PAUSE_STEPS:  # on a quick machine, too
                time.sleep(0.002)
                steps, _ = self._position()
            _, pids = self._position()
            alive = [pid for pid in pids if pid not in self._killed and _alive(pid)]
            keepers = [pid for pid in alive if pid in self._have_model]
            if len(alive) < 2 or not keepers:
                continue
            kept = self._draw.choice(keepers)
            others = [pid for pid in alive if pid != kept]
            # all but one to begin with, so that there is a view of one
            at_once = len(others) if self.kills == 0 else self._draw.choice((1, 1, 1, 1, len(others)))
            for victim in self._draw.sample(others, min(at_once, times - self.kills)):
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
                if '"kind":"step"' in line:
                    self._steps += 1
                    self._have_model.update(self._pids)
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
) -> Run:
    """An example that runs grain by grain gives the same bits whether workers are killed or not. Returns the hurt
    run."""
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
    assert_same(run, calm, 0.0)
    assert killer.kills == kills, "the run was over before all kills"
    assert len(run.summary()["faults"]) >= kills * 0.9  # who had ended anyway is no fault
    return run


def test_a_hundred_kills_of_the_digits(tmp_path: Path, shoal_process: Callable[..., Process]) -> None:
    """Grain by grain, so that nothing but a lost or doubled sample can make a difference. Where grains share a pass the
    order of additions can, too: in these 70 epochs it comes to decide about the sign of an activation, also between
    calm runs on 3 and on 4 workers, and what follows from that (2e-3) is as much as a lost sample would do."""
    words = ["--workers", "4", "--epochs", "70", "--set", "passes=grain"]
    run = survive(shoal_process, tmp_path, 100, "digits.py", words, [])
    sizes = [len(event["pids"]) for event in run.events("view")]
    assert (min(sizes), max(sizes)) == (1, 4), sizes
    assert max(sizes[sizes.index(1) :]) > 1, "others came again"


# where there is a file "lose", a batch of the last epoch is computed without one of its samples, and nobody is told
ONE_SAMPLE_LOST = """
import runpy
from pathlib import Path
from shoal.data.tensors import TensorSource

right = TensorSource.fetch
lost = []

def fetch(self, indices, epoch, seed):
    if Path("lose").exists() and epoch == 49 and len(self) == 1437 and len(indices) > 1 and not lost:
        lost.append(indices[-1])
        indices = indices[:-1]
    return right(self, indices, epoch, seed)

TensorSource.fetch = fetch
runpy.run_path({example!r})
"""


def test_one_lost_sample_of_the_digits_would_show(shoal_here: Shoal) -> None:
    """The comparison of the test above turns red, with room for rounding, too, and though a sample weighs the least in
    the last epoch."""
    shoal_here.write(ONE_SAMPLE_LOST.format(example=str(ROOT / "examples" / "digits.py")))
    calm, lossy = (Run(shoal_here.directory / name) for name in ("calm", "lossy"))
    rarely = ("--set", "passes=grain", "--set", "eval_every=never", "--set", "checkpoint.every='100 epochs'")
    done = shoal_here.train("--epochs", "49", *rarely, "--run-dir", "calm")
    assert done.status == 0, done.err
    shutil.copytree(calm.path, lossy.path)
    for run in (calm, lossy):
        done = shoal_here.train("--epochs", "50", *rarely, "--run-dir", run.path.name)
        assert done.status == 0, done.err
        (shoal_here.directory / "lose").touch()
    calm.outcome()
    with pytest.raises(AssertionError, match="the parameters differ"):
        assert_same(lossy, calm, 5e-6)


def test_twenty_kills_of_the_resnet(tmp_path: Path, shoal_process: Callable[..., Process]) -> None:
    _images(tmp_path)
    own = ["--data", str(tmp_path), "--depth", "8", "--global-batch", "16", "--epochs", "14"]
    survive(shoal_process, tmp_path, 20, "cifar10_resnet.py", ["--workers", "3"], own)


def test_twenty_kills_of_the_gpt(tmp_path: Path, shoal_process: Callable[..., Process]) -> None:
    draw = random.Random(3)
    (tmp_path / "text").write_text("".join(draw.choice("abcdefgh \n") for _ in range(6000)))
    own = ["--data", str(tmp_path / "text"), "--layers", "1", "--heads", "2", "--width", "16", "--context", "16"]
    own += ["--global-batch", "16", "--epochs", "8"]
    survive(shoal_process, tmp_path, 20, "shakespeare_gpt.py", ["--workers", "3", "--set", "passes=grain"], own)


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
