"""Runs with an evaluator: the command in this process, on a zygote that is kept, and a script that hurts its evaluator.

The first worker waits, at steps of its own, for what the evaluator has entered in the run directory: no test relies on
how quick either of them is.
"""

from __future__ import annotations

import json
import select
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import shoal.cli.main
from shoal.launch.nursery import Nursery

# `at_step(step)` is called on the first worker after each step
SCRIPT = """
import json, os, signal, time
from pathlib import Path
import torch
from torch import nn
import shoal
from shoal.launch.session import current

def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 10, generator=generator)
    return inputs, (inputs[:, :4] + 0.3 * torch.randn(count, 4, generator=generator)).argmax(1)

def events(kind, run_dir="run"):
    try:
        lines = (Path(run_dir) / "events.jsonl").read_text().rpartition("\\n")[0].splitlines()  # whole ones
    except FileNotFoundError:
        return []
    return [event for event in map(json.loads, lines) if event["kind"] == kind]

def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError("it did not come true")
        time.sleep(0.005)
    return value

def evaluators(run_dir="run"):
    "The evaluators that were started, oldest first."
    return [event["pid"] for event in events("member_joined", run_dir) if event["role"] == "evaluator"]

def evaluated(step, run_dir="run"):
    "Whether an evaluator has evaluated that step."
    return any(e["cursor"]["step"] == step and e["by"] == "evaluator" for e in events("eval", run_dir))

BEFORE

class AtStep(shoal.callbacks.Callback):
    def on_step(self, event, run):
        at_step(event.cursor.step)

def trainer(**settings):
    torch.manual_seed(1)
    given = dict(
        model=nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4)),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        train=data(97, 1),
        test=data(61, 2),
        global_batch=16,
        steps=12,
        checkpoint={"every": "4 steps"},
        eval_every="4 steps",
        evaluator={"every_s": 0, "patience_s": 120},
        callbacks=[AtStep()],
    )
    return shoal.Trainer(**{**given, **settings})

FIT
"""
NOTHING = "def at_step(step): pass"
# a step is taken only when the evaluator has seen the checkpoint before it
IN_STEP = """
def at_step(step):
    if step % 4 == 1 and step > 4:
        until(lambda: evaluated(step - 1))
"""


def program(before: str, fit: str) -> str:
    """The text of the script."""
    return SCRIPT.replace("BEFORE\n", before + "\n").replace("FIT\n", fit + "\n")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str


class KeptNursery(Nursery):
    """A zygote that outlives a launch."""

    @classmethod
    def ready_made(cls) -> KeptNursery:
        kept = cls()
        poll = select.poll()
        poll.register(kept.fileno(), select.POLLIN)
        assert poll.poll(120_000), "the zygote was not ready in time"
        kept.events()
        return kept

    def close(self, deadline_s: float = 8.0) -> None:
        pass

    def really_close(self) -> None:
        super().close()


class Runs:
    """``shoal train`` in the directory of a test; the run is in `run`."""

    def __init__(self, directory: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.directory, self._capture = directory, capture
        self.run = directory / "run"

    def train(self, *words: str, before: str = NOTHING, fit: str = "trainer().fit()", run_dir: str = "run") -> Done:
        (self.directory / "script.py").write_text(program(before, fit))
        self._capture.readouterr()
        patient = ["--set", "elastic.hang_s=600"]  # who waits for an evaluator does not hang, however slow that is
        status = shoal.cli.main.main(["train", "script.py", "--run-dir", run_dir, *patient, *words])
        return Done(status, *self._capture.readouterr())

    def events(self, kind: str, run_dir: str = "run") -> list[dict[str, Any]]:
        lines = (self.directory / run_dir / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def evaluations(self, by: str, run_dir: str = "run") -> dict[int, dict[str, float]]:
        """What was measured at which step."""
        return {e["cursor"]["step"]: e["values"] for e in self.events("eval", run_dir) if e["by"] == by}

    def warnings(self, run_dir: str = "run") -> list[str]:
        return [event["message"] for event in self.events("warning", run_dir)]

    def evaluators(self, run_dir: str = "run") -> list[int]:
        return [e["pid"] for e in self.events("member_joined", run_dir) if e["role"] == "evaluator"]

    def summary(self, run_dir: str = "run") -> dict[str, Any]:
        return dict(json.loads((self.directory / run_dir / "summary.json").read_text()))

    def best(self, run_dir: str = "run") -> dict[str, Any]:
        return dict(json.loads((self.directory / run_dir / "best" / "best.json").read_text()))
