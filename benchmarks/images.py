"""Images that a model can learn from, for benchmarks that ask how soon it does: CIFAR-10, or made up like it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

CLASSES, SHAPE = 10, (3, 32, 32)
IMAGES, LABELS = "images.npy", "labels.npy"

Images = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def cifar10(directory: Path, count: int, file: str = "train.parquet") -> Images:
    """The first `count` images of a file, normalised; again from the first on where there are not as many."""
    import simplejpeg
    from pyarrow import parquet

    table = parquet.read_table(directory / file, columns=["image", "label"])[:count]
    decoded = [simplejpeg.decode_jpeg(jpeg.as_py()).transpose(2, 0, 1) for jpeg in table["image"]]
    images = np.stack(decoded).astype(np.float32)
    images -= images.mean(axis=(0, 2, 3), keepdims=True)
    images /= images.std(axis=(0, 2, 3), keepdims=True)
    again = np.arange(count) % len(images)
    return images[again], np.asarray(table["label"].to_pylist(), dtype=np.int64)[again]


def made_up(seed: int, count: int) -> Images:
    """Ten smooth patterns, each image one of them with much noise."""
    draw = np.random.default_rng(seed)
    coarse = draw.normal(size=(CLASSES, SHAPE[0], 4, 4)).astype(np.float32)
    patterns = coarse.repeat(8, axis=2).repeat(8, axis=3)
    labels = draw.integers(CLASSES, size=count)
    noise = draw.normal(scale=3.0, size=(count, *SHAPE)).astype(np.float32)
    return patterns[labels] + noise, labels.astype(np.int64)


def save(directory: Path, images: Images) -> None:
    np.save(directory / IMAGES, images[0])
    np.save(directory / LABELS, images[1])


def load(directory: Path) -> Images:
    return np.load(directory / IMAGES, allow_pickle=False), np.load(directory / LABELS, allow_pickle=False)
