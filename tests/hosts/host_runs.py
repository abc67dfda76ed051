"""Runs over several hosts: commands that are started on them, and a run that waits where a test says so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from shoal.testing.hosts import Host

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0

# The first worker waits after certain steps until the test has seen what it wants to see.
SCRIPT = """
import argparse, pathlib, time
import torch
from torch import nn
import shoal

given = argparse.ArgumentParser()
given.add_argument("--gates", type=pathlib.Path)
given.add_argument("--at", type=int, nargs="*", default=[])
given = given.parse_args()

class Gate(shoal.callbacks.Callback):
    def on_step(self, event, run):
        if (step := event.cursor.step) in given.at:
            (given.gates / f"{step}.reached").touch()
            until = time.monotonic() + 240
            while not (given.gates / str(step)).exists():
                assert time.monotonic() < until, f"gate {step} was not opened"
                time.sleep(0.01)

trainer = shoal.Trainer(
    model=nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    train=shoal.data.digits("train"),
    test=shoal.data.digits("test"),
    global_batch=128,
    epochs=5,
    callbacks=[Gate()],
)
trainer.fit()
"""
STEPS = 60
WITHOUT_TORCH = "import sys; words, sys.argv = sys.argv[1:], ['-m']"
MAIN = "from shoal.cli.main import main; sys.exit(main(words))"
ASK = f"""
{WITHOUT_TORCH}
import json
from shoal.elastic.keys import read_key_file
from shoal.elastic.link import Link
from shoal.elastic.messages import Ask
keys, address = read_key_file(words[0] + "/key")
link = Link(address, keys, 0.3)
print(json.dumps(link.request(Ask(), 60)))
link.close()
"""


def eventually(condition: Callable[[], Any], deadline_s: float = DEADLINE_S, what: str = "it") -> Any:
    """Return what `condition` gives as soon as that is true; fail after the deadline."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"{what} did not come true within {deadline_s} s"
        time.sleep(0.02)
    return value


class Command:
    """A `shoal` command on a host. Use in a ``with`` statement. `first`: Python statements to begin with."""

    def __init__(self, host: Host | None, directory: Path, *words: str, first: str | None = None) -> None:
        self._log = directory / f"{words[0]}-{time.monotonic_ns()}.log"
        line = [sys.executable, "-m", "shoal", *words]
        if first is not None:
            line = [sys.executable, "-c", f"{WITHOUT_TORCH}\n{first}\n{MAIN}", *words]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                host.command(*line) if host is not None else line,
                cwd=directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Its status, once it has ended."""
        try:
            return self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.said}") from None

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running():
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(60)


class HostRun:
    """A run in the directory of a test, with its home on one host."""

    def __init__(self, directory: Path, home: Host | None = None) -> None:
        self.directory, self.home = directory, home
        self.path = directory / "run"
        self.gates = directory / "gates"
        self.gates.mkdir(exist_ok=True)
        self.script = directory / "script.py"
        self.script.write_text(SCRIPT)

    def train(self, *words: str, at: tuple[int, ...] = (), listen: str | None = "auto") -> Command:
        """Start it; it waits after the steps `at` until their gates are opened."""
        gates = ["--", "--gates", str(self.gates), *(["--at", *map(str, at)] if at else [])]
        listening = [] if listen is None else ["--listen", listen]
        patient = ["--set", "elastic.hang_s=600"]  # who waits at a gate does not hang, however slow the machine is
        return Command(
            self.home, self.directory, "train", "script.py", *listening, "--run-dir", "run", *patient, *words, *gates
        )

    def join(self, host: Host | None, command: Command, *words: str, first: str | None = None) -> Command:
        """Type what the run has printed, on another host."""
        line = eventually(lambda: re.search(r"shoal (join \S+ --key-file \S+)\n", command.said), what="the join line")
        return Command(host, self.directory, *line[1].split(), *words, first=first)

    def reached(self, step: int, command: Command) -> None:
        """Wait until the run waits at this gate."""

        def there() -> bool:
            assert command.running(), command.said
            return (self.gates / f"{step}.reached").exists()

        eventually(there, what=f"step {step}")

    def open(self, step: int) -> None:
        (self.gates / str(step)).touch()

    def report(self) -> dict[str, Any]:
        """What the coordinator says."""
        line = [sys.executable, "-c", ASK, str(self.path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        asked = subprocess.run(
            self.home.command(*line) if self.home is not None else line,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert asked.returncode == 0, asked.stderr
        return dict(json.loads(asked.stdout))

    def wait_for_someone_at_the_door(self, at_least: int = 1) -> None:
        def there() -> bool:
            return sum(worker["state"] == "door" for worker in self.report()["workers"]) >= at_least

        eventually(there, what="somebody at the door")

    def wait_until_heard_of(self, host: Host, phase: str, step: int) -> None:
        """Wait until the coordinator knows that the worker of `host` is in `phase` of `step`."""

        def there() -> bool:
            (worker,) = (one for one in self.report()["workers"] if one["host"] == host.name)
            return bool(worker["phase"] == phase and worker["step"] == step)

        eventually(there, what=f"{phase} of step {step} on {host.name}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        try:
            whole = (self.path / "events.jsonl").read_text().rpartition("\n")[0]  # the last line may be half there
        except FileNotFoundError:
            return []
        lines = whole.splitlines()
        return [event for line in lines if (event := json.loads(line))["kind"] == kind]

    def sizes(self) -> list[int]:
        """Of the views, in order."""
        return [len(event["members"]) for event in self.events("view")]

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "summary.json").read_text()))

    def check_complete(self) -> None:
        """Every sample was seen exactly once in every epoch."""
        summary = self.summary()
        assert (summary["status"], summary["steps"]) == ("completed", STEPS), summary
        coverage = summary["coverage"]
        assert coverage["once"] == coverage["expected"] == summary["samples"], coverage
        assert coverage["missed"] == coverage["repeated"] == 0, coverage

    def parameters(self) -> torch.Tensor:
        newest = sorted((self.path / "checkpoints").iterdir())[-1]
        pieces = load_file(newest / "state-00000.safetensors")
        return torch.cat([pieces[name].double().flatten() for name in sorted(pieces) if name.startswith("model.")])


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative."""
    return float((one - other).norm() / other.norm())
