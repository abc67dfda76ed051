"""An array to a server and back: Shoal's transport and its store, Ray actors, torch RPC, a raw TCP echo, interleaved.

    benchmarks/setup_peers.sh                        # once: the peers' environment, .venv-peers
    .venv/bin/python benchmarks/transport.py --json transport.json --out transport.md

Every transport has a client and a server process with one thread each for computing. In every round each is started,
warmed up, exchanges arrays of each size and is ended, in an order drawn anew: none of them has to do with what the
threads of another do meanwhile. A round's figure is the median of its exchanges, and transports are compared within a
round only. The raw echo receives a whole message before it sends it back, as a server of parameters must; all use the
loopback interface, or memory. "In place" means that the client has computed its array in a buffer of the transport;
otherwise it lies anywhere. Through shared memory, what the server sends back is named, not copied, since both have it;
Ray's object store, which is shared memory too, makes a new object of what is returned. `push_pull` is that of
`shoal.KVStore`, on one server that does with the array what training has it do (takes it in, keeps it, answers with a
copy of what it keeps): the transport alone only sends it back. What each does is in runners/transport.py.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import ROOT
from benchmarks.environment import describe
from benchmarks.report import Figures

TITLES = {
    "echo": "raw TCP echo",
    "ray": "Ray actor",
    "rpc": "torch RPC",
    "shm": "Shoal, shared memory",
    "in-place": "Shoal, shared memory, computed in place",
    "authenticated": "Shoal, TCP, authenticated",
    "encrypted": "Shoal, TCP, encrypted",
    "store-shm": "Shoal, `push_pull`, shared memory",
    "store-authenticated": "Shoal, `push_pull`, TCP, authenticated",
    "store-encrypted": "Shoal, `push_pull`, TCP, encrypted",
}
OURS = ("shm", "in-place", "authenticated", "encrypted", "store-shm", "store-authenticated", "store-encrypted")
REPEAT = {1: 60, 25: 12, 100: 5}  # exchanges of a round, by MiB
WARM_UP = 20  # exchanges of each size before any is timed: object stores fill their memory first
GOALS = {  # how many times as fast ours must be, by yardstick
    "echo": {
        "shm": 3.0, "in-place": 3.0, "authenticated": 1.0, "encrypted": 0.4,
        "store-shm": 3.0, "store-authenticated": 1.0, "store-encrypted": 0.4,
    },
    "ray": {"shm": 3.0, "in-place": 3.0, "store-shm": 3.0},
    "rpc": {"shm": 4.0, "in-place": 4.0, "store-shm": 4.0},
}  # fmt: skip


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9)")
    parser.add_argument("--peers", nargs="+", choices=TITLES, default=list(TITLES), help="default: all")
    parser.add_argument("--mib", nargs="+", type=int, default=list(REPEAT), help="sizes (default 1 25 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there as Markdown")
    parser.add_argument(
        "--python", type=Path, default=ROOT / ".venv-peers/bin/python", help="of the peers' environment"
    )
    return parser.parse_args(words)


class Client:
    """The client process of one transport."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name, self._process = name, process

    def measure(self, mib: int, repeat: int) -> list[float]:
        """Seconds of each of `repeat` exchanges."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"mib": mib, "repeat": repeat}) + "\n")
        self._process.stdin.flush()
        seconds: list[float] = json.loads(self.line("{"))["seconds"]
        return seconds

    def line(self, start: str) -> str:
        """The next line of its output that begins so."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line
        raise SystemExit(f"{TITLES[self.name]}: its client ended")


@contextmanager
def client(name: str, python: Path, directory: Path) -> Iterator[Client]:
    """Start the client of a transport, which starts its server."""
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(python), "-m", "benchmarks.runners.transport", name],
            cwd=ROOT,
            env=processes.environment(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        started = Client(name, process)
        started.line("ready ")
        yield started
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def everything(options: argparse.Namespace) -> dict[int, dict[str, list[float]]]:
    """The median of each round in seconds, by size and transport."""
    found: dict[int, dict[str, list[float]]] = {mib: {name: [] for name in options.peers} for mib in options.mib}
    with tempfile.TemporaryDirectory(prefix="transport-") as name:
        for number in range(options.rounds):
            for one in random.Random(f"{options.seed}/{number}").sample(options.peers, len(options.peers)):
                # alone: the threads and processes that some of them keep busy are not to slow the others down
                with processes.ending_orphans(), client(one, options.python, Path(name)) as alone:
                    for mib in options.mib:
                        alone.measure(mib, WARM_UP)
                    for mib in options.mib:
                        repeat = REPEAT.get(mib, max(3, 100 // mib))
                        found[mib][one].append(median(alone.measure(mib, repeat)))
            sys.stderr.write(f"[{number + 1}/{options.rounds}]\n")
    return found


def ratios(times: Mapping[str, list[float]], ours: str, base: str) -> Figures | None:
    """How many times as fast as `base` we were, by round."""
    if ours not in times or base not in times:
        return None
    return Figures.of(theirs / mine for mine, theirs in zip(times[ours], times[base], strict=True))


def table(found: Mapping[int, Mapping[str, list[float]]], names: list[str]) -> str:
    bases = [base for base in GOALS if base in names]
    lines = [
        "| MiB each way | transport | median ms | quartiles |" + "".join(f" times {TITLES[one]} |" for one in bases),
        "|---:|---|---:|---:|" + "---:|" * len(bases),
    ]
    for mib, times in found.items():
        for name in names:
            figures = Figures.of(1e3 * seconds for seconds in times[name])
            assert figures is not None
            cells = []
            for base in bases:
                compared = ratios(times, name, base) if name in OURS else None
                goal = GOALS[base].get(name)
                wanted = "" if goal is None else f" (goal {goal:g})"
                cells.append("" if compared is None else f"{compared.median:.2f}{wanted}")
            spread = f"{figures.lower_quartile:.2f} to {figures.upper_quartile:.2f}"
            lines.append(f"| {mib} | {TITLES[name]} | {figures.median:.2f} | {spread} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(found: Mapping[int, Mapping[str, list[float]]], names: list[str]) -> dict[str, Any]:
    """The figures behind the table: by size, ours, yardstick."""
    compared = {
        str(mib): {
            name: {base: figures for base in GOALS if (figures := ratios(times, name, base)) is not None}
            for name in names
            if name in OURS
        }
        for mib, times in found.items()
    }
    return {
        mib: {name: {base: asdict(one) for base, one in by_base.items()} for name, by_base in by_name.items()}
        for mib, by_name in compared.items()
    }


def main() -> None:
    options = arguments()
    if not options.python.exists():
        raise SystemExit(f"{options.python} does not exist: run benchmarks/setup_peers.sh first, or give --python")
    environment = describe(options.python, ["cryptography", "numpy", "pyzmq", "ray", "shoal", "torch"])
    found = everything(options)
    caption = (
        f"{options.rounds} rounds, {environment['cpu']} ({environment['cores']} cores), "
        f"torch {environment['versions']['torch']}, Ray {environment['versions']['ray']}, {environment['date'][:10]}."
    )
    text = f"{table(found, options.peers)}\n\n{caption}\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    if options.json:
        whole = {
            "environment": environment,
            "settings": {"rounds": options.rounds, "repeat": REPEAT, "seed": options.seed, "goals": GOALS},
            "times_as_fast": summary(found, options.peers),
            "seconds": found,
        }
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
