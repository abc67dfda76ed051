"""Time of a sum over ranks on this host: shared memory against gloo, one thread a rank.

    .venv/bin/python benchmarks/allreduce.py [--ranks 2] [--rounds 15] [--json FILE]

Both backends run in the same processes, in turn, so that what else the machine does falls on both alike. A
figure is the median over rounds of the slowest rank's time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shoal.comm.control import ControlPage
from shoal.comm.group import BucketSpec, Group
from shoal.comm.rendezvous import make_rendezvous, remove_rendezvous
from shoal.comm.select import make_group
from shoal.core.world import World
from shoal.elastic.attendance import FixedAttendance

BACKENDS = ("shm", "gloo")
GRADIENT_BYTES, BUCKET_BYTES = 42_000_000, 4 << 20
SIZES_MIB = (0.25, 4.0, 100.0)


def reduce_buckets(group: Group) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns what prepares a step (backward writes the gradients) and what is timed."""
    counts = [BUCKET_BYTES // 4] * (GRADIENT_BYTES // BUCKET_BYTES)
    counts.append((GRADIENT_BYTES % BUCKET_BYTES) // 4)
    reducer = group.reducer([BucketSpec(count, torch.float32) for count in counts], 4)
    facts = torch.zeros(4, dtype=torch.float64)

    def prepare() -> None:
        for buffer in reducer.buffers:
            buffer.fill_(1.0)

    def step() -> None:
        reducer.open(32.0)
        for bucket in range(len(reducer.buffers)):
            reducer.ready(bucket)
        reducer.finish(facts)

    return prepare, step


def all_reduce(group: Group, size_mib: float) -> tuple[Callable[[], None], Callable[[], None]]:
    tensor = torch.ones(int(size_mib * 2**20) // 4)

    def prepare() -> None:
        tensor.fill_(1.0)

    return prepare, lambda: group.all_reduce(tensor, "the benchmark")


def work_of_rank(world: World, control: ControlPage, rendezvous: str, rounds: int) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    attendance = FixedAttendance(world, rendezvous)
    view = attendance.enter(0)
    store = partial(attendance.store, view, 60.0)
    groups = {name: make_group(view, attendance.key, control, name, store, 60.0) for name in BACKENDS}
    works = {}
    for name, group in groups.items():
        works[f"reducer, 42 MB in 4 MiB buckets|{name}"] = (group, *reduce_buckets(group))
        for size_mib in SIZES_MIB:
            works[f"all_reduce, {size_mib:g} MiB|{name}"] = (group, *all_reduce(group, size_mib))
    times: dict[str, list[float]] = {key: [] for key in works}
    for number in range(rounds + 2):  # the first two are not counted: memory is touched, caches fill
        for key in sorted(works):
            group, prepare, work = works[key]
            prepare()
            group.barrier("the start of a round")
            begun = time.perf_counter()
            work()
            mine = torch.zeros(world.size, dtype=torch.float64)
            mine[world.rank] = time.perf_counter() - begun
            groups["shm"].all_reduce(mine, "times")
            if number >= 2:
                times[key].append(float(mine.max()))
    for group in groups.values():
        group.close()
    return times


def fork_ranks(size: int, rounds: int) -> dict[str, list[float]]:
    """This process has imported torch and run nothing, so it may be forked."""
    control, rendezvous = ControlPage(), make_rendezvous()
    reader, writer = os.pipe()
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                times = work_of_rank(World(rank, size), control, rendezvous, rounds)
                if rank == 0:
                    os.write(writer, json.dumps(times).encode())
                status = 0
            except Exception:
                control.abort()
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read()
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    remove_rendezvous(rendezvous)
    control.close()
    if failed:
        raise SystemExit("a rank failed")
    result: dict[str, list[float]] = json.loads(text)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    times = fork_ranks(options.ranks, options.rounds)
    print(f"{'median (min-max) in ms':34} {'shm':>24} {'gloo':>24} {'gloo/shm':>9}")
    for work in sorted({key.partition("|")[0] for key in times}, key=lambda name: (len(name), name)):
        cells, medians = [], []
        for backend in BACKENDS:
            ms = [1e3 * s for s in times[f"{work}|{backend}"]]
            medians.append(statistics.median(ms))
            cells.append(f"{medians[-1]:.2f} ({min(ms):.2f}-{max(ms):.2f})")
        print(f"{work:34} {cells[0]:>24} {cells[1]:>24} {medians[1] / medians[0]:8.1f}x")
    if options.json:
        environment = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "machine": platform.machine(),
            "ranks": options.ranks,
            "rounds": options.rounds,
        }
        report = {"environment": environment, "seconds": times}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
