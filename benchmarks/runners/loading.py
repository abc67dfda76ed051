"""One loader reads one data set for a few epochs, in a process of its own; writes what each took as JSON.

Called by benchmarks/loading.py with a folder that it has filled: `shards` (Parquet and a manifest), and for images
`mds` and `tar` beside it, each in the peer's own format; tabular data also as `x.npy` and `y.npy`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

WORKERS = 2
_KEPT: list[Any] = []  # what is defined goes with the library


def shoal_loader(place: Path, batch: int, memory_mib: float, processes: int = 0) -> Callable[[int], Iterator[int]]:
    """Threads end with each epoch, so that no epoch is read ahead in the one before; processes, which read only a few
    batches ahead, live as long as a run."""
    from shoal.core.config import LoaderSettings
    from shoal.core.cursor import Batches
    from shoal.data.loader import Loader, Request
    from shoal.data.shards import ShardSource

    source = ShardSource(place, settings=LoaderSettings(memory_mib=memory_mib, cache_mib=0))
    samples = len(source)
    loader = Loader(source, 1, processes=processes, batches=Batches(samples, batch, max(1, batch // 64)))
    if processes:
        endless = loader.stream(
            Request(number, at, min(at + batch, samples)) for number in count() for at in range(0, samples, batch)
        )

        def in_a_row(number: int) -> Iterator[int]:
            for loaded in islice(endless, -(-samples // batch)):
                assert loaded.request.epoch == number
                yield len(loaded.batch[0])

        return in_a_row

    def epoch(number: int) -> Iterator[int]:
        cuts = (Request(number, at, min(at + batch, samples)) for at in range(0, samples, batch))
        for loaded in loader.stream(cuts):
            yield len(loaded.batch[0])

    return epoch


class Pictures(torch.utils.data.Dataset[Any]):
    """JPEG bytes in memory, decoded one by one: what a map-style data set can do at best."""

    def __init__(self, folder: Path, decoder: str) -> None:
        import pyarrow.parquet as pq

        tables = [pq.read_table(path) for path in sorted((folder / "shards").glob("*.parquet"))]
        self.images = [image.as_py() for table in tables for image in table["image"]]
        self.labels = np.concatenate([table["label"].to_numpy() for table in tables])
        self.decode = by_pillow if decoder == "pillow" else by_simplejpeg

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, at: int) -> Any:
        return self.decode(self.images[at]), int(self.labels[at])


def by_pillow(data: bytes) -> torch.Tensor:
    from PIL import Image

    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1))


def by_simplejpeg(data: bytes) -> torch.Tensor:
    import simplejpeg

    return torch.from_numpy(simplejpeg.decode_jpeg(data).transpose(2, 0, 1))


class Rows(torch.utils.data.Dataset[Any]):
    """Rows in memory, fetched a batch at a time."""

    def __init__(self, folder: Path) -> None:
        self.x, self.y = (torch.from_numpy(np.load(folder / name)) for name in ("x.npy", "y.npy"))

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, indices: list[int]) -> Any:
        rows = torch.tensor(indices)
        return self.x[rows], self.y[rows]


def as_it_is(batch: Any) -> Any:
    return batch


def data_loader(data: Any, batch: int, workers: int, **more: Any) -> Callable[[int], Iterator[int]]:
    loader = torch.utils.data.DataLoader(
        data, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0, **more
    )

    def epoch(number: int) -> Iterator[int]:
        for x, _ in loader:
            yield len(x)

    return epoch


def import_streaming() -> Any:
    """MosaicML Streaming. It imports torchvision, whose compiled operators may be of another build of torch than the
    one that is here: none of them is used, but two must be known by name."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # they fit
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)
    import streaming

    return streaming


def mosaic(folder: Path, batch: int) -> Callable[[int], Iterator[int]]:
    data = import_streaming().StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=batch)
    keep = {"collate_fn": lambda rows: (torch.stack([to_tensor(row["image"]) for row in rows]), None)}
    loader = torch.utils.data.DataLoader(data, batch, num_workers=WORKERS, persistent_workers=True, **keep)

    def epoch(number: int) -> Iterator[int]:
        for x, _ in loader:
            yield len(x)

    return epoch


def to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB")).transpose(2, 0, 1))


def web_dataset(folder: Path, batch: int) -> Callable[[int], Iterator[int]]:
    import webdataset

    urls = sorted(str(path) for path in (folder / "tar").glob("*.tar"))
    data = (
        webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        .shuffle(5000)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(to_tensor, int)
        .batched(batch)
    )
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=WORKERS, persistent_workers=True)

    def epoch(number: int) -> Iterator[int]:
        for x, _ in loader:
            yield len(x)

    return epoch


LOADERS: dict[str, Callable[[Path, int], Callable[[int], Iterator[int]]]] = {
    "shoal": lambda folder, batch: shoal_loader(folder / "shards", batch, 256.0),
    "shoal-streaming": lambda folder, batch: shoal_loader(folder / "shards", batch, 16.0),
    "shoal-processes": lambda folder, batch: shoal_loader(folder / "shards", batch, 256.0, WORKERS),
    "dataloader": lambda folder, batch: data_loader(Pictures(folder, "pillow"), batch, WORKERS),
    "dataloader-simplejpeg": lambda folder, batch: data_loader(Pictures(folder, "simplejpeg"), batch, WORKERS),
    "mosaic": mosaic,
    "webdataset": web_dataset,
    "getitems": lambda folder, batch: data_loader(Rows(folder), batch, WORKERS, collate_fn=as_it_is),
    "getitems-inline": lambda folder, batch: data_loader(Rows(folder), batch, 0, collate_fn=as_it_is),
}


def cpu_seconds() -> float:
    """Of this process and of those that it has started and that still run."""
    me = psutil.Process()
    times = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def resume(folder: Path, batch: int) -> dict[str, float]:
    """Seconds from opening the data set to the first batch in the middle of an epoch, and the part of it that was
    read for that."""
    import shoal.data.shards.source  # imports are not what is measured

    begun = time.perf_counter()
    source = shoal.data.shards.source.ShardSource(folder / "shards")
    from shoal.core.cursor import Batches
    from shoal.data.loader import Loader, Request

    samples = len(source)
    opened = time.perf_counter() - begun
    loader = Loader(source, 1, batches=Batches(samples, batch, max(1, batch // 64)))
    middle = samples // batch // 2 * batch
    stream = loader.stream(Request(0, at, at + batch) for at in range(middle, samples - batch, batch))
    assert len(next(stream).indices) == batch
    taken = time.perf_counter() - begun
    read = source.bytes_read / source.data.manifest.bytes
    loader.close()
    return {"samples": samples, "open_s": opened, "first_batch_s": taken, "part_read": read}


def main() -> None:
    torch.set_num_threads(1)
    name, folder, batch, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if name == "resume":
        Path(sys.argv[5]).write_text(json.dumps([resume(folder, batch) for _ in range(epochs)]))
        return
    epoch = LOADERS[name](folder, batch)
    rates = []
    for number in range(epochs):
        begun, cpu_s, samples = time.perf_counter(), cpu_seconds(), 0
        for taken_now in epoch(number):
            samples += taken_now
        taken = {"seconds": time.perf_counter() - begun, "cpu_seconds": cpu_seconds() - cpu_s}
        rates.append({"samples": samples, **taken})
    Path(sys.argv[5]).write_text(json.dumps(rates))


if __name__ == "__main__":
    main()
