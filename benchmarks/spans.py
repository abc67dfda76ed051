"""Where the time of a Shoal run goes: ResNet-20 with a checkpoint every 50 steps, by named spans.

    .venv/bin/python benchmarks/spans.py --steps 200 --json spans.json

Overheads of a few per cent drown in the difference of two noisy totals; a span is measured where the time
is spent. Needs .venv-peers (benchmarks/setup_peers.sh), or --python of an environment with Shoal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import OURS, PEERS, ROOT
from benchmarks.environment import describe
from benchmarks.runners.job import JOB_VARIABLE, Job


def run(workload: str, steps: int, every: str, python: Path) -> tuple[dict[str, Any], float]:
    """The summary of one run, and the seconds from its start to its end as its events have them."""
    with tempfile.TemporaryDirectory(prefix="spans-") as name:
        directory = Path(name)
        job = Job(workload, seed=0, steps=steps, warmup=10, workers=2, batch=64, directory=name)
        command = [*PEERS[OURS].command(python, job.workers, directory), "--set", f"checkpoint.every={every}"]
        done = processes.run(command, {JOB_VARIABLE: str(job.save())}, directory / "log.txt", timeout_s=600)
        if done.status != 0:
            raise SystemExit(f"{' '.join(command)}: {done.reason()}\n{done.log}")
        summary = json.loads((directory / "run" / "summary.json").read_text())
        events = [json.loads(line) for line in (directory / "run" / "events.jsonl").read_text().splitlines()]
    times = {event["kind"]: event["time"] for event in events if event["kind"] in ("run_started", "run_ended")}
    return summary, times["run_ended"] - times["run_started"]


def table(spans: Mapping[str, float], total_s: float) -> str:
    lines = ["| span | seconds | share |", "|---|---:|---:|"]
    for name, seconds in sorted(spans.items(), key=lambda item: -item[1]):
        lines.append(f"| {name} | {seconds:.3f} | {seconds / total_s:.2%} |")
    lines.append(f"| from start to end | {total_s:.3f} | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--workload", choices=("resnet20", "mlp"), default="resnet20")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", default="50 steps", metavar="LENGTH")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there as Markdown")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-peers/bin/python")
    options = parser.parse_args()
    summary, total_s = run(options.workload, options.steps, options.checkpoint_every, options.python)
    text = table(summary["spans"], total_s)
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    if options.json:
        environment = describe(options.python, ["torch", "shoal"])
        whole = {"environment": environment, "total_s": total_s, "summary": summary}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
