"""What batch normalisation over the whole batch costs: ResNet-20, batch 128, two workers, by grains and over all.

    .venv/bin/python benchmarks/batch_norm.py --rounds 5 --json batch_norm.json              # on one host
    .venv/bin/python benchmarks/batch_norm.py --rounds 3 --rate 100mbit --json batch_norm.json   # and on two, as root

Runs of one round follow each other in an order drawn anew and are compared with each other only. Hosts are network
namespaces whose links are shaped by tc; bytes are counted at the interface. Needs an idle machine, and an environment
with Shoal (--python).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import over_hosts, processes
from benchmarks.catalogue import OURS, PEERS, ROOT
from benchmarks.environment import describe
from benchmarks.runners.job import JOB_VARIABLE, Job
from shoal.drill.hosts import Hosts

WAYS = {  # by default a grain is 32 samples
    "grain": ("statistics=grain", "grain=32"),
    "one pass": ("statistics=grain", "grain=64"),
    "global": ("statistics=global",),
}
TIMEOUT_S = 900.0
_SCRIPT = ROOT / "benchmarks/runners/shoal_trainer.py"


def run(way: str, rate: str | None, steps: int, python: Path) -> dict[str, Any]:
    """One run: samples a second, the memory of its largest worker, and what a host has sent in a step."""
    with tempfile.TemporaryDirectory(prefix="batch-norm-") as name:
        directory, sent = Path(name), 0
        job = Job("resnet20", seed=0, steps=steps, warmup=10, workers=2, batch=64, directory=name)
        variables = {JOB_VARIABLE: str(job.save())}
        setting = [word for one in WAYS[way] for word in ("--set", one)]
        if rate is None:
            command = [*PEERS[OURS].command(python, job.workers, directory), *setting]
            done = processes.run(command, variables, directory / "log.txt", timeout_s=TIMEOUT_S)
            if done.status != 0:
                raise SystemExit(f"{' '.join(command)}: {done.reason()}\n{done.log}")
        else:
            with Hosts(over_hosts.HOSTS, rate) as hosts:
                words = ["--set", "threads=1", *setting]
                over_hosts.shoal(hosts, python, _SCRIPT, words, directory / "run", variables, TIMEOUT_S)
                sent = max(over_hosts.sent(hosts))
        summary = json.loads((directory / "run" / "summary.json").read_text())
    return {
        "samples_per_s": summary["samples_per_s"],
        "peak_memory_bytes": summary["peak_memory_bytes"],
        "sent_bytes_per_step": sent / job.total_steps,
        "spans": summary["spans"],
    }


def measure(rates: list[str | None], rounds: int, steps: int, python: Path) -> list[dict[str, Any]]:
    """All runs, in rounds."""
    found = []
    for number in range(rounds):
        turns = [(way, rate) for rate in rates for way in WAYS]
        random.Random(number).shuffle(turns)
        for way, rate in turns:
            load = os.getloadavg()[0]
            figures = run(way, rate, steps, python)
            found.append({"round": number, "way": way, "rate": rate, "load_average": load, **figures})
            sys.stderr.write(f"round {number}: {way}, {rate or 'one host'}: {figures['samples_per_s']:.0f} samples/s\n")
    return found


def table(runs: list[dict[str, Any]], rates: list[str | None]) -> str:
    lines = ["| | | samples/s | times grains of 32 | peak, MiB | KiB sent by a host in a step |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for rate in rates:
        for way in WAYS:
            of_way, base = ([one for one in runs if one["rate"] == rate and one["way"] == w] for w in (way, "grain"))
            pairs = zip(of_way, base, strict=True)
            ratio = statistics.median(one["samples_per_s"] / other["samples_per_s"] for one, other in pairs)
            speed, memory, sent = (
                statistics.median(one[name] for one in of_way)
                for name in ("samples_per_s", "peak_memory_bytes", "sent_bytes_per_step")
            )
            where = f"two hosts, {rate}" if rate else "one host"
            told = f"{sent / 1024:.0f}" if rate else ""
            lines.append(f"| {where} | {way} | {speed:.0f} | {ratio:.2f} | {memory / 2**20:.0f} | {told} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", action="append", default=[], help="also over two hosts with such a link: 100mbit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python")
    options = parser.parse_args()
    rates: list[str | None] = [None, *options.rate]
    runs = measure(rates, options.rounds, options.steps, options.python)
    sys.stdout.write(table(runs, rates))
    if options.json:
        whole = {"environment": describe(options.python, ["torch", "shoal"]), "runs": runs}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
