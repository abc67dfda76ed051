"""What it costs that workers compare what they must have in common: two examples with `compare=on` and `compare=off`.

    .venv/bin/python benchmarks/comparing.py --rounds 5 --json comparing.json

Runs of both settings take turns, in an order drawn anew. What is told is how much longer the whole command takes, and
how much longer a step; and by how much more processor time, of all its processes, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import ROOT
from benchmarks.environment import describe
from benchmarks.report import Figures

SETTINGS = ("on", "off")
EXAMPLES = {
    "digits": ("digits.py", "--workers", "2", "--set", "epochs=40"),
    "gpt": ("shakespeare_gpt.py", "--workers", "2", "--set", "steps=60"),
}


def run_once(name: str, compare: str) -> dict[str, float]:
    """Seconds of the whole command, and of a sample after the first steps. A failure ends the benchmark."""
    with tempfile.TemporaryDirectory(prefix="comparing-") as place:
        directory = Path(place)
        script, *words = EXAMPLES[name]
        command = [sys.executable, "-m", "shoal", "train", str(ROOT / "examples" / script), *words]
        command += ["--set", f"compare={compare}", "--run-dir", str(directory / "run")]
        if name == "gpt":
            text = directory / "text.txt"
            text.write_text("\n".join(file.read_text() for file in sorted((ROOT / "docs").glob("*.md"))))
            command += ["--", "--data", str(text)]
        before_s = _used_s()
        done = processes.run(command, {}, directory / "log.txt", timeout_s=600)
        if done.status != 0:
            raise SystemExit(f"{' '.join(command)}: {done.reason()}\n{done.log}")
        summary: dict[str, Any] = json.loads((directory / "run" / "summary.json").read_text())
        used_s = _used_s() - before_s
        return {"wall_s": done.wall_s, "sample_s": 1.0 / summary["samples_per_s"], "used_s": used_s}


def _used_s() -> float:
    """Processor time of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dearer(timings: dict[str, list[dict[str, float]]], what: str) -> Figures | None:
    """By what factor it takes longer with the comparison, round by round."""
    return Figures.of(on[what] / off[what] for on, off in zip(timings["on"], timings["off"], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="of each setting (default 5)")
    parser.add_argument("--only", choices=EXAMPLES, help="one of the examples")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    given = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    print("| example | off: whole command | processor time | on: whole command | a step | processor time |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in [given.only] if given.only else list(EXAMPLES):
        timings = found[name] = {setting: [] for setting in SETTINGS}
        for _ in range(given.rounds):
            for setting in random.sample(SETTINGS, len(SETTINGS)):
                timings[setting].append(run_once(name, setting))
        figures = [Figures.of(one[what] for one in timings["off"]) for what in ("wall_s", "used_s")]
        figures += [dearer(timings, what) for what in ("wall_s", "sample_s", "used_s")]
        wall, used, *times = (one.median for one in figures if one is not None)
        factors = " | ".join(f"{one:.3f} times" for one in times)
        print(f"| {name} | {wall:.2f} s | {used:.2f} s | {factors} |", flush=True)
    if given.json:
        told = {"environment": describe(Path(sys.executable), ["torch", "shoal"]), "seconds": found}
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
