"""A run on files that arrive while it trains: each sample shapes the model once, whoever is killed, whenever."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e import Process, Run, Shoal, descendants, eventually

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, signal, sys, time
import numpy as np, torch
from torch import nn
import shoal

def read(paths):
    rows = torch.from_numpy(np.concatenate([np.load(path) for path in paths]))
    return rows, rows[:, :4].argmax(1)

class Hurt(shoal.callbacks.Callback):
    def on_step(self, event, run):
        if f"kill={event.cursor.step}" in sys.argv and not os.path.exists("hurt"):
            open("hurt", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

generator = torch.Generator().manual_seed(1)
test = torch.randn(40, 10, generator=generator)
torch.manual_seed(0)
shoal.Trainer(
    model=nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4)),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    train=shoal.data.follow("inbox", read, follow_s=60),
    test=(test, test[:, :4].argmax(1)),
    global_batch=20,
    callbacks=[Hurt()],
    checkpoint={"every": "1 step"},
).fit()
"""

ROWS = (53, 20, 7, 81)  # of the files; steps: 3, 1, 1, 5
STEPS = 10
TRAIN = ("--workers", "2", "--run-dir", "run")


def put(inbox: Path, number: int) -> None:
    inbox.mkdir(exist_ok=True)
    draft = inbox / f".{number}.npy"
    np.save(draft, np.random.default_rng(number).normal(size=(ROWS[number], 10)).astype(np.float32))
    draft.rename(inbox / f"part-{number}.npy")


class Feeder:
    """Puts each file there when the one before is being trained on, so that each is an epoch; then the end."""

    def __init__(self, here: Path) -> None:
        self._inbox, self._run = here / "inbox", Run(here / "run")
        self._stop = threading.Event()
        put(self._inbox, 0)
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def _feed(self) -> None:
        for number in range(1, len(ROWS) + 1):
            while number not in {event["epoch"] + 1 for event in self._run.events("arrivals")}:
                if self._stop.wait(0.005):
                    return
            if number < len(ROWS):
                put(self._inbox, number)
            else:
                (self._inbox / "_END").touch()
        self._stop.wait(60)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)


@pytest.fixture
def feeder(shoal_here: Shoal) -> Iterator[Callable[[], Feeder]]:
    feeders: list[Feeder] = []

    def begin() -> Feeder:
        feeders.append(Feeder(shoal_here.directory))
        return feeders[-1]

    yield begin
    for one in feeders:
        one.close()


@pytest.fixture
def whole(shoal_here: Shoal, feeder: Callable[[], Feeder]) -> tuple[str, dict[str, int]]:
    """What comes out where nobody is hurt; the folders are empty again."""
    shoal_here.write(SCRIPT)
    fed = feeder()
    done = shoal_here.train(*TRAIN)
    assert done.status == 0, done
    fed.close()
    outcome = shoal_here.run.outcome()
    shutil.rmtree(shoal_here.run.path)
    shutil.rmtree(shoal_here.directory / "inbox")
    return outcome


def arrivals(run: Run) -> list[tuple[int, list[str]]]:
    return [(event["epoch"], event["files"]) for event in run.events("arrivals")]


EACH = [(number, [f"part-{number}.npy"]) for number in range(len(ROWS))] + [(len(ROWS), [])]


def test_each_file_is_an_epoch_and_each_sample_is_used_once(shoal_here: Shoal, feeder: Callable[[], Feeder]) -> None:
    shoal_here.write(SCRIPT)
    feeder()
    done = shoal_here.train(*TRAIN)
    assert done.status == 0, done
    run = shoal_here.run
    assert run.outcome()[1] == {"expected": sum(ROWS), "once": sum(ROWS), "missed": 0, "repeated": 0}
    assert arrivals(run) == EACH
    summary = run.summary()
    assert (summary["epochs"], summary["steps"]) == (len(ROWS), STEPS)
    assert "1 new file, 53 samples" in done.out


@pytest.mark.parametrize("step", [2, 3])  # within an epoch, and at its end
def test_a_worker_that_is_killed_costs_no_sample(shoal_here: Shoal, feeder: Callable[[], Feeder], step: int) -> None:
    shoal_here.write(SCRIPT)
    feeder()
    done = shoal_here.train(*TRAIN, "--", f"kill={step}")
    assert done.status == 0, done
    run = shoal_here.run
    assert len(run.events("member_lost")) == 1
    assert run.outcome()[1] == {"expected": sum(ROWS), "once": sum(ROWS), "missed": 0, "repeated": 0}
    assert [one for number, one in enumerate(arrivals(run)) if one not in arrivals(run)[:number]] == EACH


def test_a_worker_that_is_killed_while_all_wait_for_files_is_replaced(
    shoal_here: Shoal, feeder: Callable[[], Feeder], shoal_process: Callable[..., Process]
) -> None:
    shoal_here.write(SCRIPT)
    inbox, run = shoal_here.directory / "inbox", shoal_here.run
    put(inbox, 0)
    with shoal_process("script.py", *TRAIN) as process:
        eventually(lambda: [event for event in run.events("step") if event["cursor"]["step"] == 3])
        pids = run.events("view")[-1]["pids"]
        os.kill(pids[1], signal.SIGKILL)
        eventually(lambda: run.events("member_lost"))
        eventually(lambda: len(run.events("view")[-1]["pids"]) == 2 and pids[1] not in run.events("view")[-1]["pids"])
        put(inbox, 1)
        (inbox / "_END").touch()
        done = process.end()
    assert done.status == 0, done
    assert run.outcome()[1]["once"] == ROWS[0] + ROWS[1]
    assert run.summary()["workers"] == 2


def test_a_run_that_is_killed_goes_on_with_the_same_files(
    shoal_here: Shoal, whole: tuple[str, dict[str, int]], feeder: Callable[[], Feeder],
    shoal_process: Callable[..., Process],
) -> None:  # fmt: skip
    run = shoal_here.run
    fed = feeder()
    with shoal_process("script.py", *TRAIN, "--set", "elastic.pace_s=0.3") as process:
        eventually(lambda: [event for event in run.events("checkpoint") if event["cursor"]["step"] == 7])
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, signal.SIGKILL)
        process.end()
    at = run.events("checkpoint")[-1]["cursor"]
    assert at["epoch"] == 3
    assert 0 < at["batch"] < 5, "in the middle of an epoch"
    for number in range(3):  # they are done with
        (shoal_here.directory / "inbox" / f"part-{number}.npy").unlink()
    done = shoal_here.train(*TRAIN)
    assert done.status == 0, done
    assert run.outcome() == whole
    fed.close()


def test_ctrl_c_while_waiting_ends_the_run_and_it_goes_on_later(
    shoal_here: Shoal, shoal_process: Callable[..., Process]
) -> None:
    shoal_here.write(SCRIPT)
    inbox, run = shoal_here.directory / "inbox", shoal_here.run
    put(inbox, 0)
    with shoal_process("script.py", *TRAIN) as process:
        eventually(lambda: [event for event in run.events("step") if event["cursor"]["step"] == 3])
        begun = time.monotonic()
        process.kill(signal.SIGINT)
        done = process.end()
        assert time.monotonic() - begun < 20
    assert done.status == 130, done
    assert run.summary()["status"] == "interrupted"
    put(inbox, 1)
    (inbox / "_END").touch()
    assert shoal_here.train(*TRAIN).status == 0
    assert run.outcome()[1]["once"] == ROWS[0] + ROWS[1]


def test_a_strategy_that_cannot_follow_is_refused(shoal_here: Shoal) -> None:
    shoal_here.write(SCRIPT)
    put(shoal_here.directory / "inbox", 0)
    done = shoal_here.train(*TRAIN, "--strategy", "parameter-server")
    assert done.status == 2
    assert "which strategy=parameter-server cannot follow: use --strategy allreduce" in done.err
