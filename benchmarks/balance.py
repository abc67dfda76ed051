"""One of two workers is 2 or 4 times slower: how much of the speed of both together is left? Shoal beside plain DDP.

    python benchmarks/balance.py --rounds 5 --json balance.json

The slow worker computes each of its passes 2 or 4 times. Both systems run with and without it, turn and turn about, in
an order drawn anew in each round. With a worker that is k times slower, the summed speed is (1 + 1/k) / 2 of that of
two equal ones, which each system shows in the same round; plain DDP, whose shares are equal, can keep 2 / (k + 1) of
it. The first steps are not measured: in them Shoal finds out that there is a slow worker. Needs .venv-peers
(benchmarks/setup_peers.sh), or --python of an environment with torch and Shoal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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
from benchmarks.runners.job import JOB_VARIABLE, Job, reports
from benchmarks.runners.slowness import SLOWNESS_VARIABLE

PEERS = {
    "ddp": Peer("ddp", "plain DDP", "torch", "benchmarks.runners.balance_ddp", "torchrun", reports=2),
    "shoal": Peer("shoal", "Shoal, balance=auto", "shoal", "benchmarks.runners.balance_shoal", "shoal", reports=1),
}
WORKERS, BATCH, WARMUP_STEPS = 2, 128, 30
EQUAL = 1
TIMEOUT_S = 600.0

Speeds = dict[tuple[str, int], float]  # samples per second in one round, by system and slowness


def run_once(peer: Peer, slowness: int, options: argparse.Namespace) -> tuple[float, list[Any]]:
    """Samples per second after the first steps, and how Shoal has changed the shares. A failure ends the benchmark."""
    with tempfile.TemporaryDirectory(prefix="balance-") as name:
        directory = Path(name)
        job = Job(options.workload, options.seed, options.steps, WARMUP_STEPS, WORKERS, BATCH, name)
        command = peer.command(options.python, job.workers, directory)
        variables = {JOB_VARIABLE: str(job.save()), SLOWNESS_VARIABLE: str(slowness)}
        done = processes.run(command, variables, directory / "log.txt", TIMEOUT_S)
        found = reports(directory)
        if done.status != 0 or len(found) != peer.reports:
            raise SystemExit(f"{' '.join(command)}: {done.reason()}\n{done.log}")
        events = directory / "run" / "events.jsonl"
        lines = map(json.loads, events.read_text().splitlines()) if events.exists() else []
        changes = [[event["step"], event["weights"]] for event in lines if event["kind"] == "balance"]
        return job.steps * job.global_batch / max(one.elapsed_s for one in found), changes


def kept(speeds: Speeds, peer: str, slowness: int) -> float:
    """The part of the summed speed of both workers that is left."""
    return speeds[peer, slowness] / (speeds[peer, EQUAL] * (1 + 1 / slowness) / 2)


def table(rounds: list[Speeds], slownesses: list[int]) -> str:
    lines = [
        "| one worker slower | system | samples/s, median | of the summed speed | quartiles | equal shares keep |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for slowness in (EQUAL, *slownesses):
        for name, peer in PEERS.items():
            speed = Figures.of(speeds[name, slowness] for speeds in rounds)
            part = Figures.of(kept(speeds, name, slowness) for speeds in rounds)
            assert speed is not None
            assert part is not None
            spread = f"{part.lower_quartile:.0%} to {part.upper_quartile:.0%}"
            shown = "| | " if slowness == EQUAL else f"| {part.median:.0%} | {spread} "
            lines.append(
                f"| {'not' if slowness == EQUAL else f'{slowness}x'} | {peer.title} | {speed.median:,.0f} "
                f"{shown}| {2 / (slowness + 1):.0%} |"
            )
    for slowness in (EQUAL, *slownesses):
        ratio = Figures.of(speeds["shoal", slowness] / speeds["ddp", slowness] for speeds in rounds)
        assert ratio is not None
        within = f" (95 % interval {ratio.interval[0]:.2f} to {ratio.interval[1]:.2f})" if ratio.interval else ""
        lines.append(f"\nOne worker {slowness}x as slow: Shoal is {ratio.median:.2f} times as fast as DDP{within}.")
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--steps", type=int, default=60, help="measured steps (default 60)")
    parser.add_argument("--slower", type=int, nargs="+", default=[2, 4], help="how many times (default 2 4)")
    parser.add_argument("--workload", default="convnet", help="of workloads.py (default convnet)")
    parser.add_argument("--seed", type=int, default=0, help="of parameters, samples and order (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-peers/bin/python", help="with torch and Shoal")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    environment = describe(options.python, ["torch", "shoal"])
    rounds: list[Speeds] = []
    runs: list[dict[str, Any]] = []
    for number in range(options.rounds):
        speeds: Speeds = {}
        plan = [(name, slowness) for name in PEERS for slowness in (EQUAL, *options.slower)]
        random.Random(f"{options.seed}/{number}").shuffle(plan)
        for name, slowness in plan:
            load = os.getloadavg()[0]
            speeds[name, slowness], changes = run_once(PEERS[name], slowness, options)
            runs.append({"round": number, "peer": name, "slowness": slowness, "load_average": load,
                         "samples_per_s": speeds[name, slowness], "changes": changes})  # fmt: skip
            sys.stderr.write(
                f"round {number + 1} of {options.rounds}: {PEERS[name].title}, one worker {slowness}x: "
                f"{speeds[name, slowness]:,.0f} samples/s {changes or ''} (load {load:.1f})\n"
            )
        rounds.append(speeds)
    caption = (
        f"{options.workload}, {WORKERS} workers with one thread each, global batch {WORKERS * BATCH}, "
        f"{environment['cpu']} ({environment['cores']} cores), torch {environment['versions']['torch']}."
    )
    sys.stdout.write(f"{table(rounds, options.slower)}\n{caption}\n")
    if options.json:
        whole = {"environment": environment, "steps": options.steps, "warmup_steps": WARMUP_STEPS, "runs": runs}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
