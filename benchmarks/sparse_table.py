"""A large embedding table over several servers: does traffic follow the rows that are touched, and not the table?

    .venv/bin/python benchmarks/sparse_table.py --json sparse.json                    # 2 GB over 2 servers
    .venv/bin/python benchmarks/sparse_table.py --gigabytes 0.25                      # where memory is short

Batches touch a share of the table's rows, drawn at random: they are pulled, and pushed back as gradients. What is
reported is the bytes of all messages, both ways, beside the bytes of the rows themselves. The servers are processes of
this machine, so that arrays pass through shared memory and count as if they were sent. Every row is written once before
anything is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from benchmarks.environment import describe
from shoal.store.fleet import Fleet
from shoal.store.kvstore import KVStore
from shoal.store.terms import FleetTerms

WIDTH = 64  # of a row, in float32
SHARES = (0.0001, 0.001, 0.01)  # of the rows, a batch
_INDEX_BYTES = 8  # a row's number, which must be sent as well


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the table (default 2)")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=10, help="of each share (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    return parser.parse_args(words)


def fill(store: KVStore, rows: int) -> None:
    """Write every row once, so that the memory is really there."""
    step = 1 << 16
    for start in range(0, rows, step):
        count = min(step, rows - start)
        store.set("table", np.ones((count, WIDTH), np.float32), rows=np.arange(start, start + count))


def measure(store: KVStore, rows: int, share: float, batches: int, draw: np.random.Generator) -> dict[str, Any]:
    """What batches that touch `share` of the rows send, receive and take."""
    touched = max(1, round(rows * share))
    payload = touched * WIDTH * 4
    sent, received, seconds = [], [], []
    for _ in range(batches):
        chosen = np.sort(draw.choice(rows, touched, replace=False))
        gradient = np.ones((touched, WIDTH), np.float32)
        before, begun = (store.bytes_sent, store.bytes_received), time.perf_counter()
        store.pull("table", rows=chosen)
        store.push("table", gradient, rows=chosen)
        seconds.append(time.perf_counter() - begun)
        sent.append(store.bytes_sent - before[0])
        received.append(store.bytes_received - before[1])
    return {
        "share": share,
        "rows": touched,
        "row_bytes": payload,
        "sent_bytes": median(sent),
        "received_bytes": median(received),
        # rows go each way once, and their numbers twice: with the question, and with the gradient
        "times_least": (median(sent) + median(received)) / (2 * payload + 2 * touched * _INDEX_BYTES),
        "ms": 1e3 * median(seconds),
    }


def main() -> None:
    options = arguments()
    rows = int(options.gigabytes * 1e9) // (WIDTH * 4)
    needed = options.gigabytes * 1e9 * 1.5
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free < needed:
        raise SystemExit(f"{options.gigabytes:g} GB need about {needed / 1e9:.1f} GB free, and {free / 1e9:.1f} are")
    environment = describe(Path(sys.executable), ["numpy", "shoal"])
    terms = FleetTerms(servers=options.servers)
    with tempfile.TemporaryDirectory(prefix="table-") as name, Fleet(name, terms) as fleet:
        fleet.wait_ready()
        with KVStore(name, deadline_s=300.0) as store:
            store.declare("table", (rows, WIDTH), "float32", sparse=True, updater="sgd")
            fill(store, rows)
            draw = np.random.default_rng(options.seed)
            found = [measure(store, rows, share, options.batches, draw) for share in SHARES]
    print(f"table of {rows:,} rows of {WIDTH} float32 ({rows * WIDTH * 4 / 1e9:.2f} GB) over {options.servers} servers")
    print(f"{'rows touched':>16} {'their bytes':>14} {'sent':>14} {'received':>14} {'times the least':>16} {'ms':>9}")
    for one in found:
        print(
            f"{one['rows']:>9,} {one['share']:6.2%} {one['row_bytes']:>14,} {one['sent_bytes']:>14,.0f} "
            f"{one['received_bytes']:>14,.0f} {one['times_least']:>16.3f} {one['ms']:>9.1f}"
        )
    if options.json:
        settings = {"rows": rows, "width": WIDTH, "servers": options.servers, "batches": options.batches}
        whole = {"environment": environment, "settings": settings, "shares": found}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
