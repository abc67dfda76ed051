"""One of two workers is 2 or 4 times slower: how much of the speed of both together is left? Shoal beside plain DDP.

    .venv/bin/python benchmarks/balance.py --json balance.json

The slow worker computes each of its passes 2 or 4 times. Both systems are started with and without it, and then take
turns of a few steps, in an order drawn anew in each round, so that what else the machine does meets all of them alike.
With a worker that is k times slower, the summed speed is (1 + 1/k) / 2 of that of two equal ones, which each system
shows in the same round; plain DDP, whose shares are equal, can keep 2 / (k + 1) of it. The first steps are not counted:
in them Shoal finds out that there is a slow worker. Needs .venv-peers (benchmarks/setup_peers.sh), or --python of an
environment with torch and Shoal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import ROOT, Peer
from benchmarks.environment import describe
from benchmarks.report import Figures
from benchmarks.runners.job import JOB_VARIABLE, Job
from benchmarks.runners.slowness import SLOWNESS_VARIABLE
from benchmarks.runners.turns import Conductor

PEERS = {
    "ddp": Peer("ddp", "plain DDP", "torch", "benchmarks.runners.balance_ddp", "torchrun"),
    "shoal": Peer("shoal", "Shoal, balance=auto", "shoal", "benchmarks.runners.balance_shoal", "shoal"),
}
WORKERS, BATCH = 2, 128
STEPS_IN_MEMORY = 16  # of data, used again and again
EQUAL = 1
PATIENCE_S = 600.0

Case = tuple[str, int]  # a system, and how many times slower its last worker is
Round = dict[Case, float]  # samples per second


class Contestant:
    """One run that takes its turns. Must be made within `processes.ending_orphans`."""

    def __init__(self, case: Case, options: argparse.Namespace, directory: Path) -> None:
        directory.mkdir()
        peer, slowness = PEERS[case[0]], case[1]
        self._directory, self._conductor = directory, Conductor(directory)
        job = Job(options.workload, options.seed, STEPS_IN_MEMORY, 0, WORKERS, BATCH, str(directory))
        variables = {JOB_VARIABLE: str(job.save()), SLOWNESS_VARIABLE: str(slowness)}
        command = peer.command(options.python, job.workers, directory)
        self._process = processes.start(command, variables, directory / "log.txt")

    def turn(self, steps: int) -> float:
        """Samples per second over so many steps."""
        try:
            return steps * WORKERS * BATCH / self._conductor.turn(steps, PATIENCE_S)
        except TimeoutError as error:
            log = (self._directory / "log.txt").read_text(errors="replace")
            raise SystemExit(f"{self._directory.name}: {error}\n{log}") from None

    def end(self) -> list[Any]:
        """End the run; returns how the shares were changed in it: from which step on, and to what."""
        self._conductor.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        self._conductor.close()
        events = self._directory / "run" / "events.jsonl"
        lines = map(json.loads, events.read_text().splitlines()) if events.exists() else []
        return [[event["step"], event["weights"]] for event in lines if event["kind"] == "balance"]


def compete(options: argparse.Namespace, cases: list[Case]) -> tuple[list[Round], dict[str, Any]]:
    """All rounds, and what Shoal did to the shares. Says on standard error how far it is."""
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="balance-") as name, processes.ending_orphans():
        runs: dict[Case, Contestant] = {}
        for case in cases:
            runs[case] = Contestant(case, options, Path(name) / f"{case[0]}-{case[1]}")
            runs[case].turn(options.warmup)
        for number in range(options.rounds):
            order = random.Random(f"{options.seed}/{number}").sample(cases, len(cases))
            rounds.append({case: runs[case].turn(options.steps) for case in order})
            figures = ", ".join(f"{case[0]} {case[1]}x {rounds[-1][case]:,.0f}" for case in cases)
            sys.stderr.write(f"round {number + 1} of {options.rounds}: {figures} samples/s\n")
        return rounds, {f"{case[0]} {case[1]}x": run.end() for case, run in runs.items()}


def kept(speeds: Round, peer: str, slowness: int) -> float:
    """The part of the summed speed of both workers that is left."""
    return speeds[peer, slowness] / (speeds[peer, EQUAL] * (1 + 1 / slowness) / 2)


def table(rounds: list[Round], slownesses: list[int]) -> str:
    lines = [
        "| one worker slower | system | samples/s, median | of the summed speed | 95 % interval | equal shares keep |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for slowness in (EQUAL, *slownesses):
        for name, peer in PEERS.items():
            speed = _figures([speeds[name, slowness] for speeds in rounds])
            part = _figures([kept(speeds, name, slowness) for speeds in rounds])
            within = f"{part.interval[0]:.0%} to {part.interval[1]:.0%}" if part.interval else ""
            shown = "| | " if slowness == EQUAL else f"| {part.median:.0%} | {within} "
            slower = "no" if slowness == EQUAL else f"{slowness}x"
            lines.append(f"| {slower} | {peer.title} | {speed.median:,.0f} {shown}| {2 / (slowness + 1):.0%} |")
    for slowness in (EQUAL, *slownesses):
        ratio = _figures([speeds["shoal", slowness] / speeds["ddp", slowness] for speeds in rounds])
        within = f" (95 % interval {ratio.interval[0]:.2f} to {ratio.interval[1]:.2f})" if ratio.interval else ""
        how = "No worker slower" if slowness == EQUAL else f"One worker {slowness}x slower"
        lines.append(f"\n{how}: Shoal is {ratio.median:.2f} times as fast as plain DDP{within}.")
    return "\n".join(lines) + "\n"


def _figures(values: list[float]) -> Figures:
    figures = Figures.of(values)
    assert figures is not None
    return figures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds of turns (default 15)")
    parser.add_argument("--steps", type=int, default=20, help="in a turn (default 20)")
    parser.add_argument("--warmup", type=int, default=60, help="steps before the first round (default 60)")
    parser.add_argument("--slower", type=int, nargs="+", default=[2, 4], help="how many times (default 2 4)")
    parser.add_argument("--workload", default="convnet", help="of workloads.py (default convnet)")
    parser.add_argument("--seed", type=int, default=0, help="of parameters, samples and order (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-peers/bin/python", help="with torch and Shoal")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    environment = describe(options.python, ["torch", "shoal"])
    cases = [(name, slowness) for name in PEERS for slowness in (EQUAL, *options.slower)]
    rounds, changes = compete(options, cases)
    caption = (
        f"{options.workload}, {WORKERS} workers with one thread each, global batch {WORKERS * BATCH}, "
        f"{environment['cpu']} ({environment['cores']} cores), torch {environment['versions']['torch']}, "
        f"{options.rounds} rounds of {options.steps} steps, load average {os.getloadavg()[0]:.1f}."
    )
    sys.stdout.write(f"{table(rounds, options.slower)}\n{caption}\n")
    if options.json:
        speeds = [{f"{name} {slowness}x": speed for (name, slowness), speed in one.items()} for one in rounds]
        whole = {"environment": environment, "samples_per_s": speeds, "changes": changes}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
