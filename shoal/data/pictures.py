"""CIFAR-10, MNIST and Fashion-MNIST: downloaded once, verified, and mapped from the cache folder.

Images are uint8, [samples, channels, height, width]; labels int64.
"""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.data.download import RemoteFile, cache_folder, fetch, locked

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

_CIFAR10 = RemoteFile(
    "cifar-10-binary.tar.gz",  # the version without pickles
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
_CIFAR10_RECORD = 1 + 3 * 32 * 32  # a label, and the planes of red, green and blue
_CIFAR10_MEMBERS = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
_MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_MNIST_FROM = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_FASHION_FROM = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
_IDX_UBYTE = 0x08

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def cifar10(split: str) -> tuple[Tensor, Tensor]:
    """50,000 and 10,000 colour images of 32 x 32, in ten classes."""
    return _mapped("cifar10", split, lambda folder: read_cifar10(fetch(_CIFAR10, folder), split))


def mnist(split: str) -> tuple[Tensor, Tensor]:
    """60,000 and 10,000 grey images of 28 x 28: handwritten digits."""
    return _mapped("mnist", split, lambda folder: _fetch_idx(folder, split, _MNIST_MD5, _MNIST_FROM))


def fashion_mnist(split: str) -> tuple[Tensor, Tensor]:
    """60,000 and 10,000 grey images of 28 x 28: clothes."""
    return _mapped("fashion-mnist", split, lambda folder: _fetch_idx(folder, split, _FASHION_MD5, _FASHION_FROM))


def _mapped(name: str, split: str, make: Callable[[Path], Arrays]) -> tuple[Tensor, Tensor]:
    """Unpacked once; the workers of a machine share the memory of what is mapped."""
    folder = cache_folder() / "datasets" / name
    files = [folder / f"{split}-{part}.npy" for part in ("images", "labels")]
    if not all(file.exists() for file in files):
        arrays: tuple[npt.NDArray[Any], ...] = make(folder)
        with locked(folder / f"{split}.lock", files[0].with_suffix(".tmp")):
            for file, array in zip(files, arrays, strict=True):
                draft = file.with_suffix(".tmp")
                with draft.open("wb") as stream:
                    np.save(stream, array)
                draft.replace(file)
    images, labels = (torch.from_numpy(np.load(file, mmap_mode="c")) for file in files)  # changes stay in this process
    return images, labels


def read_cifar10(archive: Path, split: str) -> Arrays:
    """From the binary version. Raises `UserError` where the archive is not what it should be."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.rpartition("/")[2]
            if name in _CIFAR10_MEMBERS[split] and (stream := tar.extractfile(member)) is not None:
                found[name] = stream.read()
    missing = [name for name in _CIFAR10_MEMBERS[split] if not found.get(name) or len(found[name]) % _CIFAR10_RECORD]
    if missing:
        raise UserError(f"{archive} has no good {missing[0]}: remove it, and it is downloaded again")
    data = b"".join(found[name] for name in _CIFAR10_MEMBERS[split])
    records = np.frombuffer(data, np.uint8).reshape(-1, _CIFAR10_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _fetch_idx(folder: Path, split: str, md5: dict[str, str], mirrors: tuple[str, ...]) -> Arrays:
    prefix = {"train": "train", "test": "t10k"}[split]
    parts: list[npt.NDArray[Any]] = []
    for name in (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"):
        file = RemoteFile(name, tuple(f"{mirror}{name}" for mirror in mirrors), f"md5:{md5[name]}")
        parts.append(read_idx(fetch(file, folder)))
    return parts[0][:, None], parts[1].astype(np.int64)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """An array of bytes in the format of MNIST: the number of dimensions, their sizes, the values."""
    with gzip.open(path) as stream:
        data = stream.read()
    dimensions = data[3] if len(data) > 3 and data[:3] == bytes([0, 0, _IDX_UBYTE]) else 0
    start = 4 + 4 * dimensions
    shape = np.frombuffer(data[4:start], ">i4").tolist()
    if not dimensions or len(data) != start + int(np.prod(shape)):
        raise UserError(f"{path} is no file of the idx format: remove it, and it is downloaded again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
