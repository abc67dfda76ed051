"""A CSV shuffled by the hash of a key into 16 Parquet shards: `shoal prepare` beside Spark `local[2]`, in turns.

    .venv/bin/python -m benchmarks.prepare --size 2GB --rounds 3 --out prepare.json
    .venv/bin/python -m benchmarks.prepare --size 5GB --memory 1GiB --peers shoal --rounds 1 --out memory.json

The CSV is made once, in a cache folder. Both are told the types of the columns or see them for themselves in no pass of
their own, and write zstd. A run counts from the start of the process to its end; peak memory is the resident set of all
its processes together, looked at every 20 ms. Skew is the rows of the largest shard over the mean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.environment import describe
from shoal.data.preparing.sizes import parse_size

SHARDS = 16
ROWS_AT_ONCE = 200_000
_SPARK = """
import sys
from pyspark.sql import SparkSession
source, dest, shards = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.parquet.compression.codec", "zstd")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
schema = "id LONG, user LONG, item STRING, stars LONG, price DOUBLE, score DOUBLE, at LONG"
rows = spark.read.csv(source, header=True, schema=schema)
rows.repartition(int(shards), "user").write.parquet(dest)
spark.stop()
"""


def make_csv(path: Path, nbytes: int) -> None:
    """Users are as uneven as Zipf(1.2); the rest is what tables have: words, numbers, times."""
    draw = np.random.default_rng(0)
    items = np.array([f"item-{number:06d}" for number in range(50_000)])
    draft = path.with_suffix(".draft")
    row = 0
    with draft.open("wb") as file:
        while file.tell() < nbytes:
            table = pa.table(
                {
                    "id": np.arange(row, row + ROWS_AT_ONCE),
                    "user": draw.zipf(1.2, ROWS_AT_ONCE) % 10**6,
                    "item": items[draw.integers(0, len(items), ROWS_AT_ONCE)],
                    "stars": draw.integers(1, 6, ROWS_AT_ONCE),
                    "price": draw.normal(50, 20, ROWS_AT_ONCE).round(4),
                    "score": draw.normal(size=ROWS_AT_ONCE),
                    "at": draw.integers(1_600_000_000, 1_700_000_000, ROWS_AT_ONCE),
                }
            )
            pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(include_header=row == 0))
            row += ROWS_AT_ONCE
    draft.replace(path)


def commands(source: Path, dest: Path, memory: str | None) -> dict[str, list[str]]:
    """What is run, by peer."""
    ours = [sys.executable, "-m", "shoal", "prepare", str(source), str(dest), "--partition", "key:user"]
    ours += ["--shards", str(SHARDS), "--json", *(["--memory", memory] if memory else [])]
    return {"shoal": ours, "spark": [sys.executable, "-c", _SPARK, str(source), str(dest), str(SHARDS)]}


def measure(words: list[str], dest: Path) -> dict[str, Any]:
    """Run it, watch its memory, and count what it wrote."""
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen(words, stdout=output, stderr=output)
        whole = psutil.Process(started.pid)
        while started.poll() is None:
            with contextlib.suppress(psutil.Error):
                peak = max(peak, sum(_resident(one) for one in (whole, *whole.children(recursive=True))))
            time.sleep(0.02)
        elapsed_s = time.monotonic() - began
        if started.returncode:
            output.seek(0)
            raise SystemExit(f"{words[:4]} ended with status {started.returncode}:\n{output.read().decode()[-2000:]}")
    rows = [pyarrow.parquet.read_metadata(path).num_rows for path in sorted(dest.glob("*.parquet"))]
    shutil.rmtree(dest)
    rows += [0] * (SHARDS - len(rows))  # Spark writes no file for a shard without rows
    return {
        "elapsed_s": round(elapsed_s, 2),
        "peak_bytes": peak,
        "rows": sum(rows),
        "skew": round(max(rows) * len(rows) / sum(rows), 3),
    }


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2GB", help="of the CSV")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", help="for shoal, e.g. 1GiB")
    parser.add_argument("--peers", default="shoal,spark", help="which of them, separated by commas")
    parser.add_argument(
        "--cache", type=Path, default=Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "shoal"
    )
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    nbytes = parse_size(given.size, "--size")
    source = given.cache / f"prepare-{nbytes}.csv"
    if not source.exists():
        make_csv(source, nbytes)
    found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in given.peers.split(",")}
    for number in range(given.rounds):
        for peer in list(found) if number % 2 == 0 else list(found)[::-1]:
            dest = given.cache / f"prepared-by-{peer}"
            shutil.rmtree(dest, ignore_errors=True)
            source.read_bytes() if nbytes < 10**9 else None  # small ones are in the cache of the system for both
            run = measure(commands(source, dest, given.memory)[peer], dest)
            found[peer].append(run)
            print(f"{peer}: {run['elapsed_s']} s, {run['peak_bytes'] >> 20} MiB, skew {run['skew']}", flush=True)
    report = {
        "environment": describe(Path(sys.executable), ["shoal", "pyarrow", "pyspark", "numpy"]),
        "size_bytes": source.stat().st_size,
        "shards": SHARDS,
        "memory": given.memory,
        "runs": found,
        "median_s": {peer: median(run["elapsed_s"] for run in runs) for peer, runs in found.items()},
    }
    print(json.dumps(report["median_s"]))
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
