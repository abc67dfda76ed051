"""How long does training stand still when a worker is killed, frozen or joins? Shoal, torchrun and torchft.

    benchmarks/setup_peers.sh                        # once: the peers' environment, .venv-peers
    .venv/bin/python benchmarks/recovery.py --json recovery.json --out recovery.md

3 workers with one thread each. All are watched in the same way from outside, by the times at which steps were
committed; a step counts when nobody had committed it before, so that going back to a checkpoint is part of the pause.
The longest pause is looked for from the fault until all workers have made 20 new steps together, so that the coming of
the replacement is part of it. A kill and a freeze hit a model with steps of a few milliseconds, a join one with 42 MB
of parameters. torchrun restarts a script that saves a checkpoint every second; torchft is set up as its README and its
example have it. What a system does not manage within --limit is said in words.
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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import faults, processes, recovery_report, spans
from benchmarks.catalogue import ROOT
from benchmarks.commits import usual_step_s
from benchmarks.environment import describe
from benchmarks.recovery_report import Measured
from benchmarks.report import Figures
from benchmarks.runners.job import Job
from benchmarks.subjects import SUBJECTS, Shoal, Subject, why_not

SCENARIOS = {"kill": "small", "join": "mlp", "freeze": "small"}  # and the model each is done to
OVERHEAD = {"resnet20": 200, "small": 2000}  # steps of a healthy run
COUNTS = {"kills": (20, 2), "joins": (5, 1), "freezes": (3, 1)}  # as a rule, and with --quick
WORKERS = 3
BATCH = 32


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    for name, (usual, short) in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, help=f"of a run (default {usual}; with --quick {short})")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, interleaved (default 1)")
    parser.add_argument("--quick", action="store_true", help="few of each, and short healthy runs")
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), help="default: all")
    parser.add_argument(
        "--scenarios", nargs="+", choices=[*SCENARIOS, "overhead"], default=[*SCENARIOS, "overhead"],
        help="default: all",
    )  # fmt: skip
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="to recover within (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of victims, moments and order (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there as Markdown")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep each run's files below DIR")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-peers/bin/python", help="of the peers")
    options = parser.parse_args(words)
    for name, (usual, short) in COUNTS.items():
        if getattr(options, name) is None:
            setattr(options, name, short if options.quick else usual)
    return options


def hurting(subject: Subject, scenario: str, options: argparse.Namespace, draw: random.Random) -> Iterator[faults.Hurt]:
    if scenario == "kill":
        return faults.kills(subject, WORKERS, options.kills, draw, options.limit)
    if scenario == "freeze":
        return faults.freezes(subject, WORKERS, options.freezes, draw, options.limit)
    return faults.joins(subject, WORKERS, options.joins, options.limit)


def measure(kind: type[Subject], scenario: str, options: argparse.Namespace, draw: random.Random) -> Measured:
    """One run of one subject. What was measured before it failed is kept, with the reason."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as directory, processes.ending_orphans():
        # as many steps as make an epoch; the run goes on until it is told to stop
        job = Job(SCENARIOS[scenario], options.seed, 32, 0, WORKERS, BATCH, directory)
        subject = kind(options.python, job)
        hurts: list[faults.Hurt] = []
        says: dict[str, Any] = {"load_average": list(os.getloadavg())}
        error: str | None = None
        try:
            for one in hurting(subject, scenario, options, draw):
                hurts.append(one)  # one by one: those before a failure count
            subject.stop()
            says["summary"] = subject.summary()
        except (faults.NotInTimeError, RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as failure:
            error = f"{failure}"
        commits, births = subject.commits(), subject.births()
        outcomes = tuple(
            replace(faults.outcome(one, commits, births, WORKERS), detected_s=subject.noticed(one.at)) for one in hurts
        )
        usual = usual_step_s(commits)
        if options.keep:
            kept = options.keep / f"{scenario}-{kind.name}-{time.time():.0f}"
            shutil.copytree(directory, kept, ignore=shutil.ignore_patterns("torch*", "*.pt"), dirs_exist_ok=True)
    return Measured(kind.name, scenario, outcomes, () if usual is None else (usual,), error, (says,))


Found = dict[tuple[str, str], Measured]  # by subject and scenario


def everything(options: argparse.Namespace, kinds: list[type[Subject]], found: Found) -> None:
    """Run all rounds into `found`, in an order drawn anew each time, saying on standard error how far it is."""
    plan = [
        (number, scenario, kind)
        for number in range(options.rounds)
        for scenario in SCENARIOS
        if scenario in options.scenarios
        for kind in random.Random(f"{options.seed}/{number}/{scenario}").sample(kinds, len(kinds))
    ]
    for done, (number, scenario, kind) in enumerate(plan):
        draw = random.Random(f"{options.seed}/{number}/{scenario}/{kind.name}")
        begin = time.perf_counter()
        measured = measure(kind, scenario, options, draw)
        key = kind.name, scenario
        found[key] = found[key] + measured if key in found else measured
        pauses = Figures.of(one.pause_s for one in measured.outcomes if one.pause_s is not None)
        figure = recovery_report.spread(pauses) if pauses else "no pause that ended"
        why = f" ({measured.error})" if measured.error else ""
        took = f"{time.perf_counter() - begin:.0f} s in all"
        sys.stderr.write(f"[{done + 1}/{len(plan)}] {scenario} {kind.title}: {figure}{why}, {took}\n")


def overhead(options: argparse.Namespace, found: dict[str, dict[str, Any]]) -> None:
    """What membership costs healthy Shoal runs, by workload, into `found`."""
    for workload, steps in OVERHEAD.items():
        try:
            summary, total_s = spans.run(workload, steps // 10 if options.quick else steps, "never", options.python)
        except SystemExit as failure:
            if not isinstance(failure.code, str):
                raise  # this process is told to end
            # the rest was measured and is told
            found[workload] = {"error": failure.code.splitlines()[0]}
            continue
        share = recovery_report.membership_share(summary["spans"], total_s)
        found[workload] = {"share": share, "steps": summary["steps"], "total_s": total_s, "spans": summary["spans"]}


def healthy(shares: dict[str, dict[str, Any]]) -> str:
    """The overhead in words, a line for each workload."""
    lines = []
    for workload, one in shares.items():
        if "error" in one:
            lines.append(f"Healthy run of Shoal, {workload}: failed: {one['error']}")
            continue
        ms = 1e3 * one["total_s"] / one["steps"]
        share = "no span named membership" if one["share"] is None else f"{one['share']:.3%} of the time"
        lines.append(f"Membership in a healthy run of Shoal, {workload}, 2 workers, {ms:.1f} ms a step: {share}.")
    return "\n".join(lines)


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is running is ended too
    if not options.python.exists():
        raise SystemExit(f"{options.python} does not exist: run benchmarks/setup_peers.sh first, or give --python")
    chosen = [SUBJECTS[name] for name in SUBJECTS if name in options.subjects]
    environment = describe(options.python, sorted({"torch", *(kind.package for kind in chosen)}))
    skipped = {kind.name: why for kind in chosen if (why := why_not(options.python, kind)) is not None}
    for reason in skipped.items():
        sys.stderr.write(": ".join(reason) + "\n")
    found: Found = {}
    shares: dict[str, dict[str, Any]] = {}
    try:
        everything(options, [kind for kind in chosen if kind.name not in skipped], found)
        if "overhead" in options.scenarios and Shoal in chosen and Shoal.name not in skipped:
            overhead(options, shares)
    finally:  # it takes a quarter of an hour: what was measured before it was interrupted is told
        titles = {kind.name: f"{kind.title} {environment['versions'][kind.package] or ''}".rstrip() for kind in chosen}
        tell(options, environment, titles, skipped, list(found.values()), shares)


def tell(
    options: argparse.Namespace,
    environment: dict[str, Any],
    titles: dict[str, str],
    skipped: dict[str, str],
    measured: list[Measured],
    shares: dict[str, dict[str, Any]],
) -> None:
    """Print the table, and write it and everything behind it where the options say."""
    parts = [recovery_report.table(measured, titles, skipped)] if measured else []
    caption = (
        f"{WORKERS} workers with one thread each, {environment['cpu']} ({environment['cores']} cores, load average "
        f"{environment['load_average'][0]:.1f} before), torch {environment['versions']['torch']}, "
        f"{environment['date'][:10]}."
    )
    text = "\n\n".join([*parts, *([healthy(shares)] if shares else []), caption]) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    if options.json:
        whole = {
            "environment": environment,
            "settings": {name: value for name, value in vars(options).items() if not isinstance(value, Path)},
            "skipped": skipped,
            "figures": recovery_report.figures(measured),
            "overhead": shares,
            "measured": [one.to_json() for one in measured],
        }
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
