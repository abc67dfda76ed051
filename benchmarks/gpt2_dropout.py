"""Hugging Face's GPT-2 (89 M parameters, its usual dropout) with a global batch of 8 on 2 workers: Shoal with nothing
set against raw DDP, in interleaved rounds. Speed, and the most memory that a worker and all processes together took.

    benchmarks/setup_gpt2.sh                         # once: transformers in .venv-gpt2
    python3 benchmarks/gpt2_dropout.py --rounds 5    # about 12 minutes
    python3 benchmarks/gpt2_dropout.py --quick       # a small model, to see that it runs

A worker's memory is its peak resident set, as the kernel kept it; that of all processes is the sum of their shares
(PSS: what several have in common is counted once), looked at five times a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import ROOT, Peer
from benchmarks.environment import describe
from benchmarks.runners.job import JOB_VARIABLE, Job, reports

SIDES = (
    Peer("ddp", "raw DDP", "torch", "benchmarks.runners.gpt2_ddp", "torchrun"),
    Peer("shoal", "Shoal", "shoal", "benchmarks.runners.gpt2_shoal", "shoal", reports=1),
)
WORKERS, BATCH, WARMUP_STEPS = 2, 4, 2
TIMEOUT_S = 900.0
LOOK_S = 0.2


@dataclass(frozen=True)
class Measured:
    side: str
    round: int
    load_average: float
    samples_per_s: float
    worker_peak_bytes: int
    all_peak_bytes: int


class MemoryWatch:
    """Looks at all descendants of this process until it is closed."""

    def __init__(self) -> None:
        self.worker_peak_bytes = self.all_peak_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            descendants = _descendants(os.getpid())
            self.worker_peak_bytes = max((self.worker_peak_bytes, *(_kib(p, "status", "VmHWM") for p in descendants)))
            together = sum(_kib(p, "smaps_rollup", "Pss") for p in descendants)
            self.all_peak_bytes = max(self.all_peak_bytes, together)

    def close(self) -> None:
        self._done.set()
        self._thread.join()


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _kib(pid: int, file: str, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def measure(side: Peer, job: Job, number: int, python: Path) -> Measured:
    directory, load = Path(job.directory), os.getloadavg()[0]
    watch = MemoryWatch()
    try:
        command = side.command(python, job.workers, directory)
        done = processes.run(command, {JOB_VARIABLE: str(job.save())}, directory / "log.txt", TIMEOUT_S)
    finally:
        watch.close()
    found = reports(directory)
    if done.status != 0 or len(found) != side.reports:
        raise SystemExit(f"{side.title}: {done.reason()}")
    speed = job.steps * job.global_batch / max(one.elapsed_s for one in found)
    return Measured(side.name, number, load, speed, watch.worker_peak_bytes, watch.all_peak_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--steps", type=int, default=8, help="measured steps of a run (default 8)")
    parser.add_argument("--quick", action="store_true", help="a small model, one round")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-gpt2/bin/python", help="with transformers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    options = parser.parse_args()
    if not options.python.exists():
        raise SystemExit(f"{options.python} does not exist: run benchmarks/setup_gpt2.sh first, or give --python")
    measured: list[Measured] = []
    for number in range(1 if options.quick else options.rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            with tempfile.TemporaryDirectory(prefix="gpt2-") as directory:
                workload = "gpt2-small" if options.quick else "gpt2"
                job = Job(workload, 0, options.steps, WARMUP_STEPS, WORKERS, BATCH, directory)
                one = measure(side, job, number, options.python)
            measured.append(one)
            sys.stderr.write(
                f"round {number + 1} {side.title}: {one.samples_per_s:.2f} samples/s, "
                f"worker {one.worker_peak_bytes >> 20} MiB, all {one.all_peak_bytes >> 20} MiB "
                f"(load {one.load_average:.1f})\n"
            )
    figures = {name: _ratio(measured, name) for name in ("samples_per_s", "worker_peak_bytes", "all_peak_bytes")}
    for name, ratio in figures.items():
        sys.stdout.write(f"{name}: {ratio:.3f} times DDP (median of {options.rounds} rounds)\n")
    if options.json:
        environment = describe(options.python, ["torch", "transformers", "shoal"])
        whole = {"environment": environment, "figures": figures, "runs": [asdict(one) for one in measured]}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


def _ratio(measured: list[Measured], name: str) -> float:
    """The median of Shoal's figure over DDP's in the same round."""
    by_round: dict[int, dict[str, float]] = {}
    for one in measured:
        by_round.setdefault(one.round, {})[one.side] = float(getattr(one, name))
    return median(pair["shoal"] / pair["ddp"] for pair in by_round.values())


if __name__ == "__main__":
    main()
