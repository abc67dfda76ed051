"""Is ``comm.codec=auto`` ever slower than no codec? Two runs take turns, a few steps each, on each link and workload.

Links: ``shm`` and ``loopback`` join two workers of this machine; others, such as ``1gbit`` or ``100mbit``, are the rate
of a link between two hosts (network namespaces: needs root), over which each has one worker. With
``--strategy parameter-server`` the server is on the first host.

    .venv/bin/python benchmarks/codec_auto.py --json codec_auto.json

A round is one turn of each, so that what else the machine does meets both alike; reported is the median over rounds of
none's time by auto's. The first steps, in which ``auto`` measures and chooses, are not in it: they are few in a run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import ROOT
from benchmarks.environment import describe
from benchmarks.report import Figures
from benchmarks.runners.job import JOB_VARIABLE, Job
from benchmarks.runners.turns import Conductor
from shoal.drill.hosts import Hosts

WORKERS, BATCH = 2, 128
CODECS = ("none", "auto")
NEAR = {"shm": "shm", "loopback": "gloo"}  # links within this machine, and the backend that uses each
STEPS_IN_MEMORY = 16  # of data, used again and again
PATIENCE_S = 1200.0
ALLOWED = 0.95  # of none's speed
_JOIN = re.compile(r"shoal (join \S+ --key-file \S+)\n")
_STANDING_STILL = ("comm.timeout_s=3600", "elastic.hang_s=3600")  # is no hang here: the other has its turn

Round = dict[str, float]  # samples per second, by codec


@dataclass(frozen=True)
class Case:
    link: str
    workload: str


class Contestant:
    """One run that takes its turns. Must be made within `processes.ending_orphans`."""

    def __init__(
        self, codec: str, case: Case, options: argparse.Namespace, directory: Path, hosts: Hosts | None
    ) -> None:
        directory.mkdir()
        self._directory, self._conductor = directory, Conductor(directory)
        job = Job(case.workload, options.seed, STEPS_IN_MEMORY, 0, WORKERS, BATCH, str(directory))
        self._variables = {JOB_VARIABLE: str(job.save())}
        settings = [f"comm.codec={codec}", "threads=1", f"strategy={options.strategy}", *_STANDING_STILL]
        if case.link in NEAR:
            settings.append(f"comm.backend={NEAR[case.link]}")
        elif options.encrypt is not None:
            settings.append(f"comm.encrypt={options.encrypt}")
        words = [word for setting in settings for word in ("--set", setting)]
        if options.strategy in ("parameter-server", "async"):
            words += ["--servers", "1"]
        script = str(ROOT / "benchmarks" / "runners" / "codec_shoal.py")
        train = ["train", script, "--run-dir", str(directory / "run"), *words]
        self._command = [str(options.python), "-m", "shoal"]
        if hosts is None:
            self._processes = [self._start([*self._command, *train, "--workers", str(WORKERS)], "log.txt")]
        else:
            self._over(hosts, train)

    def _over(self, hosts: Hosts, train: list[str]) -> None:
        """A worker on each host: the second joins."""
        size = ["--workers", "1", "--min-workers", str(WORKERS), "--max-workers", str(WORKERS)]
        home = hosts[0].command(*self._command, *train, "--listen", hosts[0].address, *size)
        self._processes = [self._start(home, "log.txt")]
        until = time.monotonic() + PATIENCE_S
        log = self._directory / "log.txt"
        while (found := _JOIN.search(log.read_text(errors="replace"))) is None:
            if self._processes[0].poll() is not None or time.monotonic() > until:
                raise SystemExit(log.read_text(errors="replace"))
            time.sleep(0.05)
        self._processes.append(self._start(hosts[1].command(*self._command, *found[1].split()), "joined.txt"))

    def _start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        # what is run on a host finds administrators' commands where this process does
        return processes.start(command, {"PATH": os.environ["PATH"], **self._variables}, self._directory / log)

    def turn(self, steps: int) -> float:
        """Samples per second over so many steps."""
        try:
            return steps * WORKERS * BATCH / self._conductor.turn(steps, PATIENCE_S)
        except TimeoutError as error:
            logs = (path.read_text(errors="replace") for path in sorted(self._directory.glob("*.txt")))
            raise SystemExit(f"{self._directory.name}: {error}\n" + "\n".join(logs)) from None

    def end(self) -> str:
        """End the run; returns the codec that it has chosen, and why."""
        self._conductor.end()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        self._conductor.close()
        events = self._directory / "run" / "events.jsonl"
        lines = map(json.loads, events.read_text().splitlines()) if events.exists() else []
        chosen = [f"{event['codec']}: {event['reason']}" for event in lines if event["kind"] == "codec"]
        return chosen[-1] if chosen else ""


def compete(options: argparse.Namespace, case: Case, hosts: Hosts | None) -> tuple[list[Round], str]:
    """All rounds of a case, and what ``auto`` has chosen. Says on standard error how far it is."""
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="codec-") as name, processes.ending_orphans():
        runs: dict[str, Contestant] = {}
        for codec in CODECS:
            runs[codec] = Contestant(codec, case, options, Path(name) / codec, hosts)
            runs[codec].turn(options.warmup)
        for number in range(options.rounds):
            order = random.Random(f"{options.seed}/{number}").sample(CODECS, len(CODECS))
            rounds.append({codec: runs[codec].turn(options.steps) for codec in order})
            figures = ", ".join(f"{codec} {rounds[-1][codec]:,.0f}" for codec in CODECS)
            sys.stderr.write(f"{case.link} {case.workload}, round {number + 1}: {figures} samples/s\n")
        return rounds, {codec: run.end() for codec, run in runs.items()}["auto"]


def line(case: Case, rounds: list[Round], chosen: str) -> str:
    ratio = ratios(rounds)
    speeds = [_figures([one[codec] for one in rounds]).median for codec in CODECS]
    within = f"{ratio.interval[0]:.2f} to {ratio.interval[1]:.2f}" if ratio.interval else ""
    shown = " | ".join(f"{speed:,.0f}" for speed in speeds)
    return f"| {case.link} | {case.workload} | {shown} | {ratio.median:.2f} | {within} | {chosen} |"


def ratios(rounds: list[Round]) -> Figures:
    """How many times as fast as none auto is."""
    return _figures([one["auto"] / one["none"] for one in rounds])


def _figures(values: list[float]) -> Figures:
    figures = Figures.of(values)
    assert figures is not None
    return figures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--links", nargs="+", default=[*NEAR, "1gbit", "100mbit"], help="(default all four)")
    parser.add_argument("--workloads", nargs="+", default=["mlp", "resnet20"], help="of workloads.py")
    parser.add_argument("--strategy", default="allreduce", help="(default allreduce)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of turns (default 15)")
    parser.add_argument("--steps", type=int, default=10, help="in a turn (default 10)")
    parser.add_argument("--warmup", type=int, default=10, help="steps before the first round (default 10)")
    parser.add_argument("--encrypt", help="comm.encrypt between hosts (default: Shoal's own)")
    parser.add_argument("--seed", type=int, default=0, help="of parameters, samples and order (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python", help="with torch and Shoal")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    environment = describe(options.python, ["torch", "shoal"])
    found: dict[Case, tuple[list[Round], str]] = {}
    for link in options.links:
        with contextlib.ExitStack() as stack:
            hosts = None if link in NEAR else stack.enter_context(Hosts(WORKERS, link))
            for workload in options.workloads:
                found[Case(link, workload)] = compete(options, Case(link, workload), hosts)
    rows = [
        "| link | workload | none, samples/s | auto, samples/s | auto by none | 95 % interval | chosen |",
        "|---|---|---:|---:|---:|---:|---|",
        *(line(case, *one) for case, one in found.items()),
    ]
    caption = (
        f"{options.strategy}, {WORKERS} workers with one thread each, global batch {WORKERS * BATCH}, "
        f"{environment['cpu']} ({environment['cores']} cores), torch {environment['versions']['torch']}, "
        f"{options.rounds} rounds of {options.steps} steps, load average {os.getloadavg()[0]:.1f}."
    )
    slower = [f"{case.link} {case.workload}" for case, (rounds, _) in found.items() if ratios(rounds).median < ALLOWED]
    verdict = f"More than {1 - ALLOWED:.0%} slower: {', '.join(slower) or 'none of them'}."
    sys.stdout.write("\n".join(rows) + f"\n\n{verdict}\n{caption}\n")
    if options.json:
        cases: list[dict[str, Any]] = [
            {"link": case.link, "workload": case.workload, "samples_per_s": rounds, "chosen": chosen}
            for case, (rounds, chosen) in found.items()
        ]
        options.json.write_text(json.dumps({"environment": environment, "cases": cases}, indent=1) + "\n")
    return 1 if slower else 0


if __name__ == "__main__":
    raise SystemExit(main())
