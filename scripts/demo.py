"""`make demo`: one script on 1 worker, on 3, and on 3 of which one is killed on the way: the same bits each time.

Exit status 0: they are the same; 1: they are not, or a run failed (its last words are shown); 130: interrupted.
The runs stay in a folder of their own below `runs/`, to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPT = "examples/digits.py"
KILL_AT = 60  # of 120 steps
DEADLINE_S = 300.0  # for a run of seconds, on a machine that may be busy
POLITE_S = 10.0
# With grains computed one by one all sums are made in one order, whoever makes them: the same bits, not only the same
# curve. The pace, a pause before each step, gives a run of a fraction of a second a middle in which to be hurt.
BITS = ("--set", "passes=grain")
PACE = ("--set", "elastic.pace_s=0.02")


class DemoFailed(Exception):  # noqa: N818 - what is shown, as it is
    """The message says what went wrong and where to look."""


@dataclass(frozen=True)
class Run:
    """A row of the table: what was run, and what its `summary.json` says."""

    name: str
    summary: dict[str, Any]

    @property
    def bits(self) -> str:
        return str(self.summary["params_sha256"])

    @property
    def exactly_once(self) -> bool:
        coverage = self.summary["coverage"]
        return bool(coverage["once"] == coverage["expected"] == self.summary["samples"])

    def row(self) -> str:
        steps, samples, once = self.summary["steps"], self.summary["samples"], "yes" if self.exactly_once else "NO"
        accuracy = self.summary["final"]["test_accuracy"]
        return f"  {self.name:<22}{steps:>5}{samples:>9,}   {once:<9}{accuracy:>10.4f}   {self.bits[:16]}"


HEAD = f"  {'workers':<22}{'steps':>5}{'samples':>9}   {'each once':<9}{'accuracy':>10}   weights (SHA-256)"


def events(directory: Path) -> list[dict[str, Any]]:
    """What a run has told so far, whole lines only."""
    try:
        lines = (directory / "events.jsonl").read_text().rpartition("\n")[0].splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def train(name: str, directory: Path, workers: int, meanwhile: Callable[[Path], bool] | None = None) -> Run:
    """Run `shoal train` to its end. `meanwhile` is called again and again until it says that it has done its part.

    Raises `DemoFailed`. Whatever ends this ends the run, too."""
    command = ["train", SCRIPT, "--workers", str(workers), *BITS]
    print(f"$ shoal {' '.join(command)}", flush=True)
    if meanwhile is not None:
        command += PACE
    log = directory.with_suffix(".log")
    with log.open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *command, "--run-dir", str(directory), "--json"],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0,
        )  # fmt: skip
        try:
            until = time.monotonic() + DEADLINE_S
            while process.poll() is None:
                if time.monotonic() > until:
                    raise DemoFailed(f"the run has not ended after {DEADLINE_S:.0f} s; what it said is in {log}")
                if meanwhile is not None and meanwhile(directory):
                    meanwhile = None
                time.sleep(0.005)
        finally:
            end(process)
    if process.returncode != 0:
        raise DemoFailed(f"the run failed (exit status {process.returncode}):\n\n{log.read_text().strip()}")
    if meanwhile is not None:
        raise DemoFailed("the run was over before a worker could be killed: try again")
    summary = json.loads((directory / "summary.json").read_text())
    print(f"  completed in {summary['seconds']:.1f} s", flush=True)
    return Run(name, summary)


def end(process: subprocess.Popen[bytes]) -> None:
    """A run that still goes on is asked to end, then made to. Its workers end with it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(POLITE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill_a_worker(directory: Path) -> bool:
    """SIGKILL for worker 1 once the run is half through; whether that is done."""
    told = events(directory)
    step = max((event["cursor"]["step"] for event in told if event["kind"] == "step"), default=0)
    if step < KILL_AT:
        return False
    pid = next(event["pid"] for event in told if event["kind"] == "member_joined" and event["rank"] == 1)
    os.kill(pid, signal.SIGKILL)
    print(f"  at step {step}: kill -9 {pid}, which is worker 1", flush=True)
    return True


def account(killed: Run, directory: Path) -> str:
    """What the run did about the loss, in its own words and times."""
    fault = killed.summary["faults"][0]
    views = [event["members"] for event in events(directory) if event["kind"] == "view"]
    left = next(len(members) for members in views if len(members) < len(views[0]))
    replaced = ", then a new worker joined them" if len(views[-1]) == len(views[0]) else ""
    return (
        f"  the run: {fault['member']} was {fault['cause']}\n"
        f"  {left} workers trained on after {fault['resumed_s']:.2f} s{replaced}"
    )


def show(home: Path) -> None:
    """The three runs, and what they have in common. Raises `DemoFailed` if that is not everything."""
    print(
        f"One script, run in three ways: {SCRIPT} is ten lines of PyTorch that\n"
        "state a global batch of 128 samples. Who computes which of them, Shoal decides.\n"
    )
    runs = [
        train("1", home / "one", 1),
        train("3", home / "three", 3),
        train("3, one of them killed", home / "killed", 3, kill_a_worker),
    ]
    print(f"{account(runs[-1], home / 'killed')}\n\n{HEAD}")
    for run in runs:
        print(run.row())
    if len({run.bits for run in runs}) > 1 or not all(run.exactly_once for run in runs):
        raise DemoFailed(f"the three results are not the same, and they must be. All three runs are in {home}")


NEXT = f"""
The same weights, to the last bit: neither the number of workers nor the loss of
one changed what was learned, and no sample was missed or seen twice.

Try next
  .venv/bin/shoal train {SCRIPT} --workers 4   watch it train
  .venv/bin/shoal drill {SCRIPT} --random 1    hurt it 20 times
  .venv/bin/shoal doctor                                 is this machine fit?
  docs/guide.md                                          write your own script"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="a new folder for the runs (default: runs/demo-TIME)")
    home = parser.parse_args().dir or ROOT / "runs" / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        home.mkdir(parents=True)
        show(home)
    except DemoFailed as failed:
        print(f"demo: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; nothing of it is running any more", file=sys.stderr)
        return 130
    print(NEXT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
