"""SIGKILL at any moment: the run goes on from the newest complete checkpoint, and nobody can tell afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from e2e import Process, Run, Shoal, descendants, eventually
from e2e_script import SCRIPT

from shoal.checkpoint.catalog import Catalog
from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness

pytestmark = pytest.mark.ranks

KILLS = 48  # of workers, at least; of whole commands there are two more
MOST_KILLS = 200
DURING_A_SAVE = 10  # of these at least
RESUMED = 20  # and at least so many attempts that had a checkpoint to go on from
LONGEST_S = 0.6


def victim(session: Session, run_dir: str) -> str:
    """An ordinary training that saves after every step."""
    import torch
    from torch import nn

    import shoal

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(237, 10, generator=generator)
    trainer = shoal.Trainer(
        model=nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4)),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        train=(inputs, inputs[:, :4].argmax(1)),
        test=(inputs[:50], inputs[:50, :4].argmax(1)),
        global_batch=20,
        epochs=4,
        checkpoint={"every": "1 step"},
        run_dir=run_dir,
    )
    return str(trainer.fit().summary["params_sha256"])


def newest(run: Run) -> int:
    """The step of the newest checkpoint. None may be damaged, and none that was announced may be missing."""
    found = Catalog(run.checkpoints).newest_valid(pytest.fail)
    step = found.cursor.step if found is not None else 0
    announced = [event["cursor"]["step"] for event in run.events("checkpoint")]
    assert step >= max(announced, default=0), "what was said to be saved is not there"
    return step


def test_workers_killed_at_random_moments(ranks: RankHarness, tmp_path: Path) -> None:
    draw = random.Random(11)
    reference = Run(tmp_path / "reference")
    begun = time.monotonic()
    ranks.run(2, victim, str(reference.path))
    span_s = min(LONGEST_S, time.monotonic() - begun)
    kills = during_a_save = completed = resumed = 0
    run = Run(tmp_path / "run-0")
    # a quick machine finishes many runs and begins anew: kill on until all that must be seen has been seen
    while kills < KILLS or during_a_save < DURING_A_SAVE or resumed < RESUMED:
        assert kills < MOST_KILLS, f"of {kills} kills {during_a_save} came during a save, {resumed} attempts went on"
        before = newest(run)
        begun_before = len(run.events("run_started"))
        with ranks.start(2, victim, str(run.path)) as training:
            first = draw.randrange(2)
            training.signal(first, 0)  # it is there
            if kills % 2:  # every other time it gets as far as its first steps, however slow the machine is
                eventually(partial(has_begun, run, begun_before))
            if kills % 4 == 3:  # and sometimes to a save
                eventually(partial(saves_or_is_over, run))
            else:
                time.sleep(draw.uniform(0.0, span_s))  # any moment will do: nothing is waited for
            for rank in (first, 1 - first):
                with contextlib.suppress(AssertionError, ProcessLookupError):  # it may have ended in time
                    training.signal(rank, signal.SIGKILL)
            training.wait()
        kills += 1
        during_a_save += any(run.checkpoints.glob(".tmp-*"))
        for started in run.events("run_started")[begun_before:]:
            assert started["cursor"]["step"] == before, "it did not go on from the newest complete checkpoint"
            resumed += before > 0
        if (run.path / "summary.json").exists():
            assert run.outcome() == reference.outcome()
            completed += 1
            run = Run(tmp_path / f"run-{completed}")
    ranks.run(2, victim, str(run.path))
    assert run.outcome() == reference.outcome()
    assert not list(run.path.rglob(".*tmp*")), "what killed writers left was not cleared away"


def test_a_command_that_is_killed(shoal_process: Callable[..., Process], shoal_here: Shoal) -> None:
    """First the launcher alone, whose workers vanish by themselves; then all of it at once.

    That no shared memory stays behind is what every test is held to.
    """
    shoal_here.write(SCRIPT)
    words = ("--workers", "2", "--set", "checkpoint.every=2 steps")
    draw = random.Random(3)
    run = shoal_here.run
    for everything in (False, True):
        starts, begun = len(run.events("run_started")), newest(run)
        # long enough to be killed in its middle, in any event
        process = shoal_process("script.py", *words, "--run-dir", "run", "--epochs", "2000")
        eventually(partial(is_under_way, process, run, starts, begun + 4))
        time.sleep(draw.uniform(0.0, 0.1))
        pids = descendants(process.pid)
        assert len(pids) in (5, 6)  # a reaper, a zygote, a coordinator, two workers, and a spare one once it is there
        pidfds = [os.pidfd_open(pid) for pid in pids]
        for pid in (process.pid, *(pids if everything else ())):
            with contextlib.suppress(ProcessLookupError):  # gone with its parent already
                os.kill(pid, signal.SIGKILL)
        assert process.end().status == -signal.SIGKILL
        assert gone(pidfds)
        assert newest(run) > begun
    last = newest(run)
    with shoal_process("script.py", *words, "--run-dir", "run", "--steps", str(last + 7)) as process:
        done = process.end()
    assert done.status == 0, done
    assert f"going on from step {last:,}:" in done.out
    assert shoal_here.train(*words, "--run-dir", "whole", "--steps", str(last + 7)).status == 0
    assert run.outcome() == Run(shoal_here.directory / "whole").outcome()


def has_begun(run: Run, starts: int) -> bool:
    return len(run.events("run_started")) > starts


def saves_or_is_over(run: Run) -> bool:
    return any(run.checkpoints.glob(".tmp-*")) or (run.path / "summary.json").exists()


def is_under_way(process: Process, run: Run, starts: int, step: int) -> bool:
    """Whether it has begun another time, and saved a checkpoint after that step."""
    assert process.running(), process.end()
    entries = Catalog(run.checkpoints).entries()
    return has_begun(run, starts) and bool(entries) and entries[-1].step > step


def gone(pidfds: list[int], deadline_s: float = 60.0) -> bool:
    """Whether these processes end; closes the descriptors."""
    try:
        for pidfd in pidfds:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(deadline_s * 1000):
                return False
        return True
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
