"""What the same bits on any number of workers cost: two workers, grains of 32, sums in float32 and in float64.

    .venv/bin/python benchmarks/exact_sums.py --rounds 3 --json exact_sums.json
    .venv/bin/python benchmarks/exact_sums.py --python OTHER/.venv/bin/python  # the same with another version of Shoal

ResNet-20 and an MLP with batch normalisation of 49 M parameters, at batch 128: two grains a worker. Runs of
one round follow each other. The memory is that of the largest worker, as the kernel counts it: shared memory that it
has touched is part of it. Needs an idle machine for the speeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import OURS, PEERS, ROOT
from benchmarks.environment import describe
from benchmarks.runners.job import JOB_VARIABLE, Job

SUMS = ("float32", "float64")
WORKS = {"resnet20": 30, "wide": 6}  # steps that are measured


def run(workload: str, sums: str, python: Path) -> dict[str, Any]:
    """Samples a second and the memory of one run."""
    with tempfile.TemporaryDirectory(prefix="exact-sums-") as name:
        directory = Path(name)
        job = Job(workload, seed=0, steps=WORKS[workload], warmup=10, workers=2, batch=64, directory=name)
        command = PEERS[OURS].command(python, job.workers, directory)
        command += ["--set", "grain=32", "--set", f"sums={sums}"]
        done = processes.run(command, {JOB_VARIABLE: str(job.save())}, directory / "log.txt", timeout_s=900)
        if done.status != 0:
            raise SystemExit(f"{' '.join(command)}: {done.reason()}\n{done.log}")
        summary = json.loads((directory / "run" / "summary.json").read_text())
    figures = ("samples_per_s", "peak_memory_bytes", "params_sha256")
    return {"workload": workload, "sums": sums, **{name: summary[name] for name in figures}}


def table(runs: list[dict[str, Any]]) -> str:
    lines = ["| | sums | samples/s | peak, MiB | times float32 |", "|---|---|---:|---:|---:|"]
    for workload in WORKS:
        of = {sums: [one for one in runs if (one["workload"], one["sums"]) == (workload, sums)] for sums in SUMS}
        memory = {sums: statistics.median(one["peak_memory_bytes"] for one in of[sums]) for sums in SUMS}
        for sums in SUMS:
            speed = statistics.median(one["samples_per_s"] for one in of[sums])
            times = memory[sums] / memory["float32"]
            lines.append(f"| {workload} | {sums} | {speed:.0f} | {memory[sums] / 2**20:.0f} | {times:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python")
    options = parser.parse_args()
    runs = [run(work, sums, options.python) for _ in range(options.rounds) for work in WORKS for sums in SUMS]
    sys.stdout.write(table(runs))
    if options.json:
        whole = {"environment": describe(options.python, ["torch", "shoal"]), "runs": runs}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
