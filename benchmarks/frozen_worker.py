"""One of three workers is frozen for ten seconds: how long do the others stand still? `async` beside BSP.

    .venv/bin/python benchmarks/frozen_worker.py --json frozen.json

Both strategies have servers. Every worker writes down when a commit of its own was acknowledged. What is reported is
the longest time between two commits of one and the same of the other workers while the frozen one sleeps, and the share
of their usual commits that they made meanwhile. It is done with leases that are longer than the freeze, so that the
frozen worker stays a member, and with leases as they are by default, after which it is put out and replaced. BSP waits
for all of its members; under ASP nobody should wait. Epochs are longer than the run, because at the end of one all
workers meet, and would wait there for a frozen one until its lease ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import faults, processes
from benchmarks.catalogue import ROOT
from benchmarks.commits import Commit
from benchmarks.environment import describe
from benchmarks.report import Figures
from benchmarks.runners.job import Job
from benchmarks.subjects import RESTARTS, StepLogged

WORKERS, SERVERS, BATCH = 3, 2, 32
LONG_LEASE_S = 60.0
START_S = 180.0
SETTLE_S = 6.0  # of undisturbed training before a freeze: more than one meeting of asynchronous workers
CASES = {
    "async": ("async (ASP)", ("--strategy", "async")),
    "bsp": ("parameter-server (BSP)", ("--strategy", "parameter-server")),
}
LEASES = {"long": f"{LONG_LEASE_S:.0f} s", "default": "default"}


@dataclass(frozen=True)
class Freeze:
    """What one freeze did to the others. All in seconds; `share` is of the commits that they usually make."""

    case: str
    lease: str
    usual_s: float  # the longest time between two commits of one of them, in as much time just before
    pause_s: float
    share: float


class Served(StepLogged):
    """`shoal train` with servers."""

    name, title, package = "shoal", "Shoal", "shoal"

    def __init__(self, python: Path, job: Job, words: Sequence[str]) -> None:
        super().__init__(python, job)
        self._words = list(words)

    def begin(self, workers: int) -> None:
        script = str(ROOT / "benchmarks/runners/frozen_shoal.py")
        size = ["--workers", str(workers), "--servers", str(SERVERS)]
        settings = ["--set", "threads=1", "--set", f"elastic.max_restarts={RESTARTS}"]
        run_dir = ["--run-dir", str(self.directory / "run"), "--json"]
        self._start([str(self.python), "-m", "shoal", "train", script, *size, *settings, *run_dir, *self._words])

    def grow(self) -> None:
        raise NotImplementedError("nobody joins here")

    def shrink(self) -> None:
        raise NotImplementedError("nobody leaves here")


def longest_gap(commits: Iterable[Commit], pid: int, since: float, until: float) -> float:
    """The longest time without a commit of process `pid` between `since` and `until`; what such a gap reaches beyond
    `since` counts, what it reaches beyond `until` does not."""
    times = sorted(one.time for one in commits if one.pid == pid)
    before = [moment for moment in times if moment <= since][-1:]
    inside = [moment for moment in times if since < moment <= until]
    return max((later - earlier for earlier, later in pairwise([*(before or [since]), *inside, until])), default=0.0)


def judged(case: str, lease: str, commits: Sequence[Commit], others: Sequence[int], at: float, until: float) -> Freeze:
    """What a freeze from `at` to `until` did to `others`, beside as much time just before it."""
    length = until - at
    during = sum(at < one.time <= until and one.pid in others for one in commits)
    before = sum(at - length < one.time <= at and one.pid in others for one in commits)
    return Freeze(
        case,
        lease,
        usual_s=max(longest_gap(commits, pid, at - length, at) for pid in others),
        pause_s=max(longest_gap(commits, pid, at, until) for pid in others),
        share=during / before if before else 0.0,
    )


def freezes(case: str, lease: str, count: int, options: argparse.Namespace, draw: random.Random) -> list[Freeze]:
    """One run in which workers are frozen, one after the other."""
    with tempfile.TemporaryDirectory(prefix="frozen-") as directory, processes.ending_orphans():
        job = Job("small", options.seed, 256, 0, WORKERS, BATCH, directory)
        words = [*CASES[case][1], *(["--set", f"elastic.lease_s={LONG_LEASE_S}"] if lease == "long" else [])]
        subject = Served(options.python, job, words)
        subject.begin(WORKERS)
        found = []
        for _ in range(count):
            _settle(subject, time.time(), SETTLE_S + options.seconds)
            members = _busy(subject)
            victim = draw.choice(members)
            at = time.time()
            os.kill(victim, signal.SIGSTOP)
            try:
                time.sleep(options.seconds)  # as long as the worker is frozen: what is measured
            finally:
                until = time.time()
                with contextlib.suppress(ProcessLookupError):  # it was put out, and killed
                    os.kill(victim, signal.SIGCONT)
            time.sleep(1.0)  # for what was written last to be there
            others = [pid for pid in members if pid != victim]
            found.append(judged(case, lease, subject.commits(), others, at, until))
            sys.stderr.write(f"{json.dumps(asdict(found[-1]))}\n")
        subject.stop()
        return found


def _busy(subject: Served) -> list[int]:
    """The workers that are alive and have committed something."""
    alive, committed = set(subject.workers()), {one.pid for one in subject.commits()}
    return sorted(alive & committed)


def _settle(subject: Served, since: float, seconds: float) -> None:
    """Until all workers have committed for so long, undisturbed."""

    def ready(commits: list[Commit]) -> bool:
        first: dict[int, float] = {}
        for one in commits:
            if one.time > since:
                first[one.pid] = min(one.time, first.get(one.pid, one.time))
        alive = subject.workers()
        return len(alive) == WORKERS and all(pid in first and time.time() > first[pid] + seconds for pid in alive)

    faults.wait_for(subject, "commits of all workers", ready, START_S + seconds)


def table(found: Sequence[Freeze], seconds: float) -> str:
    lines = [
        "| strategy | lease | freezes | longest pause of another worker, median | longest of all "
        f"| in as much time before, median | commits while frozen ({seconds:g} s), of the usual |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for case, (title, _) in CASES.items():
        for lease, words in LEASES.items():
            mine = [one for one in found if (one.case, one.lease) == (case, lease)]
            pauses, usual = Figures.of(one.pause_s for one in mine), Figures.of(one.usual_s for one in mine)
            share = Figures.of(one.share for one in mine)
            if pauses is None or usual is None or share is None:
                continue
            lines.append(
                f"| {title} | {words} | {pauses.count} | {pauses.median:.2f} s | {pauses.maximum:.2f} s "
                f"| {usual.median:.2f} s | {share.median:.0%} |"
            )
    return "\n".join(lines)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--freezes", type=int, default=5, help="of each (default 5)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long one lasts (default 10)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--leases", nargs="+", choices=LEASES, default=list(LEASES), help="default: all")
    parser.add_argument("--quick", action="store_true", help="one freeze of each")
    parser.add_argument("--seed", type=int, default=0, help="of victims (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-peers/bin/python", help="with torch and Shoal")
    options = parser.parse_args(words)
    if options.quick:
        options.freezes = 1
    return options


def main() -> None:
    options = arguments()
    environment = describe(options.python, ["torch", "shoal"])
    found: list[Freeze] = []
    for lease in options.leases:
        for case in options.cases:
            draw = random.Random(f"{options.seed}/{case}/{lease}")
            found += freezes(case, lease, options.freezes, options, draw)
    caption = (
        f"{WORKERS} workers with one thread each and {SERVERS} servers, {environment['cpu']} "
        f"({environment['cores']} cores), torch {environment['versions']['torch']}."
    )
    sys.stdout.write(f"{table(found, options.seconds)}\n\n{caption}\n")
    if options.json:
        whole = {"environment": environment, "freezes": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
