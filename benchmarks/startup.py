"""How long from the command to the end of the first step: `shoal train` against `torchrun`, 2 workers each.

    .venv/bin/python benchmarks/startup.py --rounds 11 --json startup.json

Both run a script as small as the digits example, turn and turn about, in an order drawn anew; a first
round, which reads everything from disk, is left out. Needs .venv-peers (benchmarks/setup_peers.sh), or
--python of an environment with torch and Shoal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import ROOT, Peer
from benchmarks.environment import describe
from benchmarks.report import Figures
from benchmarks.runners.job import JOB_VARIABLE, Job

COMMANDS = {
    "torchrun": Peer("torchrun", "torchrun", "torch", "benchmarks.runners.startup_ddp", "torchrun"),
    "shoal": Peer("shoal", "shoal train", "shoal", "benchmarks.runners.startup_shoal", "shoal"),
}
STEPS = 11  # one epoch of the digits, without its last, smaller batch


def time_once(peer: Peer, python: Path) -> dict[str, float]:
    """Seconds from the command to the end of its first step, and to its own. A failure ends the benchmark."""
    with tempfile.TemporaryDirectory(prefix="startup-") as name:
        directory = Path(name)
        job = Job("digits", seed=0, steps=STEPS, warmup=0, workers=2, batch=64, directory=name)
        command = peer.command(python, job.workers, directory)
        done = processes.run(command, {JOB_VARIABLE: str(job.save())}, directory / "log.txt", timeout_s=120)
        mark = directory / "first-step"
        if done.status != 0 or not mark.exists():
            raise SystemExit(f"{' '.join(command)}: {done.reason()}\n{done.log}")
        return {"first_step_s": float(mark.read_text()) - done.started_at, "wall_s": done.wall_s}


def table(timings: dict[str, list[dict[str, float]]]) -> str:
    lines = [
        "| command | to the first step, median | quartiles | to the end, median |",
        "|---|---:|---:|---:|",
    ]
    for name, timed in timings.items():
        first = Figures.of(one["first_step_s"] for one in timed)
        whole = Figures.of(one["wall_s"] for one in timed)
        assert first is not None
        assert whole is not None
        spread = f"{first.lower_quartile:.2f} to {first.upper_quartile:.2f} s"
        lines.append(f"| {COMMANDS[name].title} | {first.median:.2f} s | {spread} | {whole.median:.2f} s |")
    ratio = ratios(timings)
    if ratio is not None:
        within = f", 95 % interval {ratio.interval[0]:.2f} to {ratio.interval[1]:.2f}" if ratio.interval else ""
        lines += [
            "",
            f"`shoal train` takes {ratio.median:.2f} times as long as torchrun to the first step{within}.",
        ]
    return "\n".join(lines) + "\n"


def ratios(timings: dict[str, list[dict[str, float]]]) -> Figures | None:
    pairs = zip(timings["shoal"], timings["torchrun"], strict=True)
    return Figures.of(ours["first_step_s"] / theirs["first_step_s"] for ours, theirs in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=11, help="rounds that count (default 11)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there as Markdown")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-peers/bin/python")
    options = parser.parse_args()
    environment = describe(options.python, ["torch", "shoal"])
    timings: dict[str, list[dict[str, float]]] = {name: [] for name in COMMANDS}
    for number in range(-1, options.rounds):
        for name in random.Random(number).sample(list(COMMANDS), len(COMMANDS)):
            timed = time_once(COMMANDS[name], options.python)
            sys.stderr.write(f"round {number + 1} {name}: first step after {timed['first_step_s']:.2f} s\n")
            if number >= 0:
                timings[name].append(timed)
    text = table(timings)
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    if options.json:
        ratio = ratios(timings)
        whole: dict[str, Any] = {
            "environment": environment, "timings": timings, "times_torchrun": asdict(ratio) if ratio else None
        }  # fmt: skip
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
