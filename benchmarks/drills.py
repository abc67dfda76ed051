"""What do the strategies survive? `shoal drill` for each of them, on four models: workers and servers are killed and
frozen, and the link of a host is cut.

    .venv/bin/python benchmarks/drills.py --cifar10 DIR --text FILE --json drills.json

Every drill runs over two hosts, network namespaces joined by a link (needs root). A model whose data is not given is
left out, and so said. A cell of the table is the worst of its faults; the exit status is not 0 where a law was broken.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import ROOT
from benchmarks.environment import describe

TIMEOUT_S = 1200.0
WORKER_FAULTS = ("kill", "freeze", "cut")
SERVER_FAULTS = ("kill-server", "freeze-server")


@dataclass(frozen=True)
class Work:
    """An example, made small. `data` names the option that says where its data is."""

    title: str
    script: str
    words: tuple[str, ...]
    data: str | None = None


@dataclass(frozen=True)
class Way:
    """A strategy with its settings."""

    title: str
    words: tuple[str, ...]
    servers: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        return (*WORKER_FAULTS, *(SERVER_FAULTS if self.servers else ()))


@dataclass(frozen=True)
class Drilled:
    """One drill. Times are the longest of its faults; None where nothing was carried out."""

    work: str
    way: str
    faults: int
    laws_held: bool
    broken: str
    missed: int
    repeated: int
    detected_s: float | None
    pause_s: float | None
    parameters: float | None
    loss: float | None


WORKS = {
    "mlp": Work("MLP (digits)", "digits.py", ("--epochs", "12")),
    "resnet": Work("ResNet-8", "cifar10_resnet.py", ("--depth", "8", "--limit", "1500", "--epochs", "12"), "cifar10"),
    "gpt": Work(
        "GPT", "shakespeare_gpt.py", ("--limit", "40000", "--layers", "1", "--width", "32", "--epochs", "6"), "text"
    ),
    "sparse": Work("sparse embedding", "sparse_embedding.py", ("--ratings", "8000", "--epochs", "6")),
}
_SERVED = ("--servers", "2", "--replicas", "2")
WAYS = {
    "bsp": Way("parameter-server, BSP", ("--strategy", "parameter-server", *_SERVED), True),
    "ssp": Way(
        "parameter-server, SSP(4)", ("--strategy", "parameter-server", "--consistency", "ssp:4", *_SERVED), True
    ),
    "async": Way("async", ("--strategy", "async", *_SERVED), True),
    "incremental": Way("incremental", ("--strategy", "incremental", "--set", "incremental.h=4")),
    "hybrid": Way("hybrid: all-reduce, async", ("--strategy", "hybrid", "--set", "hybrid.outer=async", *_SERVED), True),
}


def drill(work: Work, way: Way, options: argparse.Namespace) -> Drilled:
    """One cell of the table."""
    own = [*work.words, *(["--data", str(getattr(options, work.data).resolve())] if work.data else [])]
    if work.script == "digits.py":  # it has no options of its own
        run, own = [*own], []
    else:
        run = []
    faults = ["--random", str(options.seed), "--faults", str(options.faults), "--kinds", ",".join(way.kinds)]
    with tempfile.TemporaryDirectory(prefix="drills-") as directory:
        log = Path(directory) / "log"
        where = ["--workers", "4", "--hosts", "2", "--run-dir", str(Path(directory) / "drill"), "--json"]
        script = str(ROOT / "examples" / work.script)
        command = [sys.executable, "-m", "shoal", "drill", script, *way.words, *faults, *where, *run, "--", *own]
        done = processes.run(command, {}, log, TIMEOUT_S)
        words = log.read_text(errors="replace")
        if done.status not in (0, 1, 3):
            return Drilled(work.title, way.title, 0, False, words.strip()[-400:], 0, 0, None, None, None, None)
        return judged(work, way, json.loads(words[words.index("{\n") : words.rindex("}") + 1]))


def judged(work: Work, way: Way, report: dict[str, Any]) -> Drilled:
    """What a report says."""
    hits = [fault for fault in report["faults"] if fault["carried_out"]]
    coverage = report["hurt"]["coverage"]
    return Drilled(
        work.title,
        way.title,
        len(hits),
        report["laws_held"],
        "; ".join(f"{law['name']}: {law['measured']}" for law in report["laws"] if not law["held"]),
        coverage["missed"],
        coverage["repeated"],
        max((fault["detected_s"] for fault in hits if fault["detected_s"] is not None), default=None),
        max((fault["pause_s"] for fault in hits if fault["pause_s"] is not None), default=None),
        report["parameter_difference"] if report["hurt"]["synchronous"] else None,
        _loss(report["hurt"]) - _loss(report["calm"]),
    )


def _loss(side: dict[str, Any]) -> float:
    final: dict[str, float] = side["final"]
    return final.get("test_loss", final.get("train_loss", math.nan))


def table(found: Sequence[Drilled]) -> str:
    lines = [
        "| model | strategy | faults | laws | samples missed, repeated | noticed within | longest pause | parameters "
        "differ by | loss, hurt less calm |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for one in found:
        cells = [
            one.work,
            one.way,
            str(one.faults),
            "all held" if one.laws_held else f"**broken**: {one.broken}",
            f"{one.missed}, {one.repeated}",
            "" if one.detected_s is None else f"{one.detected_s:.2f} s",
            "" if one.pause_s is None else f"{one.pause_s:.2f} s",
            "" if one.parameters is None else f"{one.parameters:.1e}",
            "" if one.loss is None else f"{one.loss:+.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cifar10", type=Path, metavar="DIR", help="as examples/cifar10_resnet.py takes it")
    parser.add_argument("--text", type=Path, metavar="FILE", help="as examples/shakespeare_gpt.py takes it")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), help="default: all")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="default: all")
    parser.add_argument("--faults", type=int, default=6, help="of a drill (default 6)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    return parser.parse_args(words)


def main() -> None:
    options = arguments()
    found: list[Drilled] = []
    for key in options.works:
        work = WORKS[key]
        if work.data is not None and getattr(options, work.data) is None:
            sys.stderr.write(f"{work.title} is left out: give --{work.data}\n")
            continue
        for way in options.ways:
            found.append(drill(work, WAYS[way], options))
            sys.stderr.write(f"{json.dumps(asdict(found[-1]))}\n")
    sys.stdout.write(f"{table(found)}\n")
    if options.json:
        environment = describe(Path(sys.executable), ["torch", "shoal"])
        whole = {"environment": environment, "drills": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")
    sys.exit(0 if all(one.laws_held for one in found) else 1)


if __name__ == "__main__":
    main()
