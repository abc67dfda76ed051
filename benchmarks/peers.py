"""The same work on raw DDP, Lightning, Accelerate, Ray Train and Shoal, interleaved: who is how fast?

    benchmarks/setup_peers.sh                        # once: the peers' environment, .venv-peers
    .venv/bin/python benchmarks/peers.py --json peers.json --out peers.md

In every round each peer runs once, in an order drawn anew, in processes of its own: 2 workers with one
thread each and 64 samples a worker and step. What is measured is samples per second after the first 10
steps, by each worker's own clock; the slowest counts. What peers have in common is in workloads.py, what is
their own in runners/. This file needs the standard library only; an interrupted benchmark with --journal
goes on with the round it was in.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes, report
from benchmarks.catalogue import OURS, PEERS, ROOT, YARDSTICK, Peer
from benchmarks.environment import describe
from benchmarks.journal import Journal
from benchmarks.report import Run
from benchmarks.runners.job import JOB_VARIABLE, Job, reports

STEPS = {"resnet20": 60, "mlp": 100}  # about as long each
WARMUP_STEPS = 10
WORKERS = 2
BATCH = 64
TIMEOUT_S = 300.0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9)")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="default: all")
    parser.add_argument("--workloads", nargs="+", choices=STEPS, default=list(STEPS), help="default: both")
    parser.add_argument("--steps", type=int, help=f"measured steps (default {STEPS})")
    parser.add_argument("--seed", type=int, default=0, help="of parameters, samples and order (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there as Markdown")
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="keep finished runs there, and skip the rounds it has"
    )
    parser.add_argument(
        "--python", type=Path, default=ROOT / ".venv-peers/bin/python", help="of the peers' environment"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep each run's files below DIR")
    return parser.parse_args(words)


def missing(python: Path, peers: list[Peer], versions: dict[str, str | None]) -> dict[str, str]:
    """Why a peer cannot run, by name; peers that can are not there."""
    reasons: dict[str, str] = {}
    for peer in peers:
        if versions[peer.package] is None:
            reasons[peer.name] = f"skipped: {peer.package} is not installed"
            continue
        probe = subprocess.run(
            [str(python), "-c", peer.probe],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if probe.returncode:
            reasons[peer.name] = f"skipped: {(probe.stderr.strip().splitlines() or ['probe failed'])[-1]}"
    return reasons


def measure(peer: Peer, job: Job, number: int, python: Path) -> Run:
    """Run `job` on `peer`. A failure is a result too: it says why."""
    directory = Path(job.directory)
    load = os.getloadavg()[0]
    command = peer.command(python, job.workers, directory)
    done = processes.run(command, {JOB_VARIABLE: str(job.save())}, directory / "log.txt", TIMEOUT_S)
    run = Run(peer.name, job.workload, number, load, done.wall_s)
    found = reports(directory)
    if done.status != 0:
        return replace(run, error=done.reason())
    if len(found) != peer.reports:
        return replace(run, error=f"{len(found)} of {peer.reports} workers reported")
    slowest = max(one.elapsed_s for one in found)
    worker_steps = job.steps * len(found)
    return replace(
        run,
        samples_per_s=job.steps * job.global_batch / slowest,
        cpu_s_per_step=sum(one.cpu_s for one in found) / worker_steps,
        page_faults_per_step=sum(one.page_faults for one in found) / worker_steps,
        checksum=found[0].checksum,
    )


def everything(options: argparse.Namespace, peers: list[Peer], journal: Journal) -> None:
    """Run all rounds, saying on standard error how far it is."""
    names = [peer.name for peer in peers]
    plan = [
        (number, workload, peer)
        for number in range(options.rounds)
        for workload in options.workloads
        if not journal.holds(names, workload, number)
        for peer in random.Random(f"{options.seed}/{number}/{workload}").sample(peers, len(peers))
    ]
    begin = time.perf_counter()
    for done, (number, workload, peer) in enumerate(plan):
        with tempfile.TemporaryDirectory(prefix="peers-") as directory:
            steps = options.steps or STEPS[workload]
            job = Job(workload, options.seed, steps, WARMUP_STEPS, WORKERS, BATCH, directory)
            run = measure(peer, job, number, options.python)
            if options.keep:
                kept = options.keep / f"{workload}-{number}-{peer.name}"
                no_sockets = shutil.ignore_patterns("r", "torch*")
                shutil.copytree(directory, kept, ignore=no_sockets, dirs_exist_ok=True)
        journal.add(run)
        left_s = (time.perf_counter() - begin) / (done + 1) * (len(plan) - done - 1)
        figure = run.error or f"{run.samples_per_s:,.0f} samples/s"
        sys.stderr.write(
            f"[{done + 1}/{len(plan)}] round {number + 1} {workload} {peer.title}: {figure} "
            f"({run.wall_s:.0f} s in all; about {left_s / 60:.0f} min left)\n"
        )


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is running is ended too
    if not options.python.exists():
        raise SystemExit(f"{options.python} does not exist: run benchmarks/setup_peers.sh first, or give --python")
    chosen = [PEERS[name] for name in PEERS if name in options.peers]
    environment = describe(options.python, sorted({"torch", *(peer.package for peer in chosen)}))
    skipped = missing(options.python, chosen, environment["versions"])
    for reason in skipped.items():
        sys.stderr.write(": ".join(reason) + "\n")
    settings: dict[str, Any] = {
        "steps": {name: options.steps or STEPS[name] for name in options.workloads},
        "warmup_steps": WARMUP_STEPS,
        "workers": WORKERS,
        "batch_per_worker": BATCH,
        "seed": options.seed,
        "torch": environment["versions"]["torch"],
    }
    journal = Journal(options.journal, settings)
    everything(options, [peer for peer in chosen if peer.name not in skipped], journal)

    titles = {peer.name: f"{peer.title} {environment['versions'][peer.package] or ''}".rstrip() for peer in chosen}
    tables = [report.table(journal.runs, name, titles, skipped, YARDSTICK, OURS) for name in options.workloads]
    text = "\n\n".join(tables)
    caption = (
        f"{WORKERS} workers with one thread each, {BATCH} samples a worker and step, "
        f"{environment['cpu']} ({environment['cores']} cores), "
        f"torch {environment['versions']['torch']}, {environment['date'][:10]}."
    )
    text = f"{text}\n\n{caption}\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    if options.json:
        names = [peer.name for peer in chosen]
        figures = report.summary(journal.runs, options.workloads, names, YARDSTICK, OURS)
        runs = [run.to_json() for run in journal.runs]
        whole = {
            "environment": environment,
            "settings": settings,
            "skipped": skipped,
            "figures": figures,
            "runs": runs,
        }
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
