"""Loading alone, beside others: decoded images, tabular rows, and the first batch after a resume.

    .venv/bin/python benchmarks/loading.py --cifar10 DIR --rounds 5 --json loading.json

Images: 50,000 of CIFAR-10 as JPEG (DIR has train.parquet with columns image and label), or synthetic ones of that size.
Every loader shuffles, has 2 cores, and 2 processes where it uses processes; each runs in a process of its own with one
thread a worker, turn and turn about, in an order drawn anew. The first epoch of each, in which processes start and
files are read for the first time, is left out; the rest counts. Rows: 1,000,000 of 16 numbers and a label. Resume: the
first batch in the middle of 10,000,000 rows. Needs .venv-streaming (benchmarks/setup_streaming.sh).
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder is on the path, and the root is what is needed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import processes
from benchmarks.catalogue import ROOT
from benchmarks.environment import describe
from benchmarks.report import Figures

PACKAGES = ["torch", "shoal", "mosaicml-streaming", "webdataset", "simplejpeg", "pillow", "pyarrow"]
IMAGES = {
    "shoal": "Shoal, all in 256 MiB",
    "shoal-processes": "Shoal, the same with loader.processes=2",
    "shoal-streaming": "Shoal, within 16 MiB",
    "dataloader": "PyTorch DataLoader, Pillow",
    "mosaic": "MosaicML Streaming",
    "webdataset": "WebDataset",
    "dataloader-simplejpeg": "PyTorch DataLoader, Shoal's decoder",
}
PEERS = ("dataloader", "mosaic", "webdataset")
ROWS = {
    "shoal": "Shoal, all in 256 MiB",
    "shoal-streaming": "Shoal, within 16 MiB",
    "getitems": "PyTorch DataLoader, __getitems__, 2 processes",
    "getitems-inline": "PyTorch DataLoader, __getitems__, in the process",
}
EPOCHS = 3


def write_images(folder: Path, cifar10: Path | None, count: int) -> None:
    """The same images as shards, in MosaicML's format and as tar files."""
    table = image_table(cifar10, count)
    write_shards(folder / "shards", table, 500)
    (folder / "tar").mkdir()
    images, labels = table["image"].to_pylist(), table["label"].to_pylist()
    size = 2500
    for first in range(0, len(images), size):
        with tarfile.open(folder / "tar" / f"{first:06d}.tar", "w") as tar:
            for at in range(first, min(first + size, len(images))):
                for ending, data in (("jpg", images[at]), ("cls", str(labels[at]).encode())):
                    entry = tarfile.TarInfo(f"{at:06d}.{ending}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    write_mosaic(folder / "mds", images, labels)


def image_table(cifar10: Path | None, count: int) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if cifar10 is not None:
        return pq.read_table(cifar10 / "train.parquet", columns=["image", "label"]).combine_chunks()
    return pa.table({"image": list(synthetic(count)), "label": [at % 10 for at in range(count)]})


def write_mosaic(folder: Path, images: Sequence[bytes], labels: Sequence[int]) -> None:
    from PIL import Image

    from benchmarks.runners.loading import import_streaming

    with import_streaming().MDSWriter(
        out=str(folder), columns={"image": "jpeg", "label": "int"}, size_limit=1 << 22
    ) as writer:
        for image, label in zip(images, labels, strict=True):
            writer.write({"image": Image.open(io.BytesIO(image)), "label": label})


def synthetic(count: int) -> Iterator[bytes]:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for _ in range(count):
        smooth = np.cumsum(np.cumsum(rng.normal(size=(32, 32, 3)) * 8, 0), 1) / 4 + 128
        file = io.BytesIO()
        Image.fromarray(np.clip(smooth, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        yield file.getvalue()


def write_shards(folder: Path, table: Any, rows: int) -> None:
    from shoal.data.manifest import Manifest
    from shoal.data.places import Place
    from shoal.data.shard_file import write_shard

    groups = [table.slice(at, rows) for at in range(0, table.num_rows, rows)]
    place, per_shard = Place.of(folder), max(1, len(groups) // 10)
    shards = tuple(
        write_shard(place / f"part-{at:05d}.parquet", groups[at : at + per_shard], table.schema)
        for at in range(0, len(groups), per_shard)
    )
    packed, fields = Manifest.pack_schema(table.schema)
    Manifest(
        rows=table.num_rows, bytes=sum(one.bytes for one in shards), fields=fields, arrow_schema=packed, shards=shards
    ).write(place)  # fmt: skip


def write_rows(folder: Path, count: int) -> None:
    """Rows as shards, and as arrays for those who have them in memory."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(count, 16)).astype(np.float32), rng.integers(0, 2, count)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 16)
    write_shards(folder / "shards", pa.table({"x": rows, "y": y}), 8192)


def write_many(folder: Path, count: int) -> None:
    """Narrow rows, many of them."""
    import numpy as np
    import pyarrow as pa

    numbers = np.arange(count)
    write_shards(folder / "shards", pa.table({"x": numbers.astype(np.float32), "y": numbers}), 16384)


def measure(python: Path, name: str, folder: Path, batch: int, epochs: int) -> list[dict[str, float]]:
    """What each epoch of a loader took. A failure ends the benchmark."""
    with tempfile.TemporaryDirectory(prefix="loading-") as directory:
        answer = Path(directory) / "answer.json"
        command = [str(python), "-m", "benchmarks.runners.loading", name, str(folder), str(batch), str(epochs)]
        done = processes.run([*command, str(answer)], {}, Path(directory) / "log.txt", timeout_s=900)
        if done.status != 0:
            raise SystemExit(f"{' '.join(command)}: {done.reason()}\n{done.log}")
        return list(json.loads(answer.read_text()))


def rounds(python: Path, names: Sequence[str], folder: Path, batch: int, count: int) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(count):
        for name in random.Random(number).sample(list(names), len(names)):
            counted = measure(python, name, folder, batch, EPOCHS)[1:]
            found[name].append(counted)
            sys.stderr.write(f"round {number + 1} {name}: {rate(counted):,.0f} samples/s\n")
    return found


def rate(epochs: Sequence[dict[str, float]], seconds: str = "seconds") -> float:
    return sum(one["samples"] for one in epochs) / sum(one[seconds] for one in epochs)


def table(title: str, titles: dict[str, str], found: dict[str, list[Any]], rivals: Sequence[str]) -> str:
    """Medians over the rounds, and Shoal over the best rival of the same round."""
    lines = [f"| {title} | samples/s, median | quartiles | samples per second of CPU |", "|---|---:|---:|---:|"]
    for name, timed in found.items():
        wall, cpu = Figures.of(map(rate, timed)), Figures.of(rate(one, "cpu_seconds") for one in timed)
        assert wall is not None
        assert cpu is not None
        spread = f"{wall.lower_quartile:,.0f} to {wall.upper_quartile:,.0f}"
        lines.append(f"| {titles[name]} | {wall.median:,.0f} | {spread} | {cpu.median:,.0f} |")
    lines.append("")
    for name in (one for one in found if one.startswith("shoal")):
        ratio = ratios(found, name, rivals)
        assert ratio is not None
        best = max(rivals, key=lambda rival: max(map(rate, found[rival])))
        lines.append(f"{titles[name]}: {ratio.median:.1f} times the best of the others (mostly {titles[best]}).")
    return "\n".join(lines) + "\n"


def ratios(found: dict[str, list[Any]], name: str, rivals: Sequence[str]) -> Figures | None:
    best = [max(rate(found[rival][number]) for rival in rivals) for number in range(len(found[name]))]
    return Figures.of(rate(ours) / theirs for ours, theirs in zip(found[name], best, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cifar10", type=Path, metavar="DIR", help="has train.parquet (default: synthetic images)")
    parser.add_argument("--images", type=int, default=50_000, help="synthetic images (default 50,000)")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--many", type=int, default=10_000_000, help="rows of which a resume finds the middle")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="*", default=["images", "rows", "resume"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there as Markdown")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-streaming/bin/python")
    options = parser.parse_args()
    whole: dict[str, Any] = {"environment": describe(options.python, PACKAGES)}
    texts = []
    with tempfile.TemporaryDirectory(prefix="loading-data-") as name:
        folder = Path(name)
        if "images" in options.parts:
            (folder / "images").mkdir()
            write_images(folder / "images", options.cifar10, options.images)
            found = rounds(options.python, list(IMAGES), folder / "images", options.batch, options.rounds)
            texts.append(table("images", IMAGES, found, PEERS))
            ratio = ratios(found, "shoal", PEERS)
            whole["images"] = {"timings": found, "times_best_peer": asdict(ratio) if ratio else None}
        if "rows" in options.parts:
            (folder / "rows").mkdir()
            write_rows(folder / "rows", options.rows)
            found = rounds(options.python, list(ROWS), folder / "rows", options.batch, options.rounds)
            texts.append(table("rows", ROWS, found, ("getitems", "getitems-inline")))
            ratio = ratios(found, "shoal", ("getitems", "getitems-inline"))
            whole["rows"] = {"timings": found, "times_best_peer": asdict(ratio) if ratio else None}
        if "resume" in options.parts:
            (folder / "many").mkdir()
            write_many(folder / "many", options.many)
            timed = measure(options.python, "resume", folder / "many", options.batch, options.rounds)
            first = Figures.of(one["first_batch_s"] for one in timed)
            assert first is not None
            texts.append(
                f"First batch in the middle of {options.many:,} rows: {first.median:.2f} s (at most "
                f"{first.maximum:.2f}), after reading {timed[0]['part_read']:.1%} of the data set.\n"
            )
            whole["resume"] = timed
    text = "\n".join(texts)
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    if options.json:
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
