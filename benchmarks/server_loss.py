"""A server of the key-value store is killed or frozen: how long does a client wait, and is anything lost or doubled?

    .venv/bin/python benchmarks/server_loss.py --json server_loss.json

Two servers with a copy each; a client pushes without a pause, one array over both. Now and then the process that holds
a server is killed (SIGKILL) or frozen (SIGSTOP), once its copy is in step again. What is reported is the longest time
between two acknowledged pushes around each fault, beside that of the same pushes in calm. In the end the sum on the
servers must be just what was acknowledged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from benchmarks.environment import describe
from benchmarks.report import Figures
from shoal.comm.bulk import BulkClient, Message
from shoal.core.errors import ShoalError
from shoal.store.description import read_fleet
from shoal.store.fleet import Fleet
from shoal.store.kvstore import KVStore
from shoal.store.terms import FleetTerms

SERVERS, VALUES = 2, 1 << 18
PATIENCE_S = 120.0
FAULTS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=20, help="default 20")
    parser.add_argument("--freezes", type=int, default=5, help="default 5")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the moments (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    return parser.parse_args(words)


class Pushing:
    """A client that pushes ones until it is told to stop, and notes when each push was acknowledged."""

    def __init__(self, store: KVStore) -> None:
        self.acknowledged: list[float] = []
        self._store, self._stopping = store, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        ones = np.ones(VALUES)
        while not self._stopping.is_set():
            self._store.push("sum", ones)
            self.acknowledged.append(time.monotonic())

    def after(self, moment: float, count: int) -> bool:
        return len(self.acknowledged) >= count and self.acknowledged[-count] > moment

    def longest(self, begin: float, end: float) -> float:
        """The longest time between two pushes that ends in this stretch of time."""
        before = [moment for moment in self.acknowledged if moment <= begin][-1:]
        inside = before + [moment for moment in self.acknowledged if begin < moment <= end]
        return max(later - earlier for earlier, later in pairwise(inside))

    def stop(self) -> int:
        """Returns how many were acknowledged."""
        self._stopping.set()
        self._thread.join()
        return len(self.acknowledged)


def who(directory: Path) -> list[list[dict[str, Any]]]:
    """What each process of each server says of itself; nothing where it does not answer."""
    description, keys = read_fleet(directory)

    def ask(address: str) -> dict[str, Any]:
        try:
            client = BulkClient(address, keys, deadline_s=5.0)
        except ShoalError:
            return {}
        try:
            return client.request(Message({"k": "who"}), 1.0).head
        except ShoalError:
            return {}
        finally:
            client.close()

    return [[ask(address) for address in addresses] for addresses in description.servers]


def primaries(directory: Path) -> list[int]:
    """The process that holds each server, once every one of them has a copy in step."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        holding = [[one["pid"] for one in ones if one.get("serving") and one["backup"]] for ones in who(directory)]
        if all(len(pids) == 1 for pids in holding):
            return [pids[0] for pids in holding]
        time.sleep(0.05)
    raise SystemExit(f"the servers were not whole within {PATIENCE_S:g} s")


def hurt(directory: Path, pushing: Pushing, kind: str, draw: random.Random) -> float:
    """Do one fault; returns the longest pause of the client."""
    victim = draw.choice(primaries(directory))
    time.sleep(draw.uniform(0.0, 0.2))  # at any moment of a push
    begin = time.monotonic()
    os.kill(victim, FAULTS[kind])
    until = begin + PATIENCE_S
    while not pushing.after(begin + 2.5, 20):  # whatever comes of it has come by then
        if time.monotonic() > until:
            raise SystemExit(f"no push was acknowledged within {PATIENCE_S:g} s of a {kind}")
        time.sleep(0.01)
    return pushing.longest(begin, time.monotonic())


def measure(options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(options.seed)
    faults = draw.sample(["kill", "freeze"], counts=[options.kills, options.freezes], k=options.kills + options.freezes)
    pauses: dict[str, list[float]] = {"calm": [], "kill": [], "freeze": []}
    terms = FleetTerms(servers=SERVERS, replicas=2)
    with tempfile.TemporaryDirectory(prefix="loss-") as name, Fleet(name, terms) as fleet:
        fleet.wait_ready()
        with KVStore(name, deadline_s=PATIENCE_S) as store:
            store.declare("sum", (VALUES,), "float64", updater="add")
            pushing = Pushing(store)
            try:
                for number, kind in enumerate(faults):
                    pauses[kind].append(hurt(Path(name), pushing, kind, draw))
                    primaries(Path(name))
                    begin = time.monotonic()
                    while not pushing.after(begin, 50):
                        time.sleep(0.01)
                    pauses["calm"].append(pushing.longest(begin, time.monotonic()))
                    sys.stderr.write(f"[{number + 1}/{len(faults)}] {kind}: {pauses[kind][-1]:.3f} s\n")
            finally:
                count = pushing.stop()
            found = store.pull("sum")
    return {"pauses_s": pauses, "acknowledged": count, "least": float(found.min()), "most": float(found.max())}


def main() -> None:
    options = arguments()
    environment = describe(Path(sys.executable), ["numpy", "shoal"])
    found = measure(options)
    print("| a server is | median | quartiles | longest | times |\n|---|---:|---:|---:|---:|")
    for kind, title in (("calm", "well"), ("kill", "killed"), ("freeze", "frozen")):
        figures = Figures.of(found["pauses_s"][kind])
        if figures is not None:
            quartiles = f"{figures.lower_quartile:.3f} to {figures.upper_quartile:.3f} s"
            print(f"| {title} | {figures.median:.3f} s | {quartiles} | {figures.maximum:.3f} s | {figures.count} |")
    exact = found["least"] == found["most"] == found["acknowledged"]
    print(f"\n{found['acknowledged']:,} pushes were acknowledged; the servers hold {found['most']:,.0f}.")
    if options.json:
        options.json.write_text(json.dumps({"environment": environment, **found}, indent=2) + "\n")
    if not exact:
        raise SystemExit("an update was lost or made twice")


if __name__ == "__main__":
    main()
