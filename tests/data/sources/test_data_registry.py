"""Named data sets: downloaded from a real server, verified, cached, and shared by processes that start together."""

from __future__ import annotations

import gzip
import hashlib
import io
import multiprocessing
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from web_server import Web, serving

import shoal
from shoal.core.errors import ConfigError, UserError
from shoal.data import download, pictures
from shoal.data.download import DownloadError, RemoteFile, fetch
from shoal.data.registry import register

pytestmark = pytest.mark.unit

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "web").mkdir()
    with serving(tmp_path / "web") as found:
        yield found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(download, "_PAUSE_S", 0.001)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))


def md5(data: bytes) -> str:
    return f"md5:{hashlib.md5(data).hexdigest()}"


def published(tmp_path: Path, web: Web, content: bytes = CONTENT) -> RemoteFile:
    (tmp_path / "web" / "data.bin").write_bytes(content)
    return RemoteFile("data.bin", (f"{web.url}/data.bin",), md5(content))


# ---- downloads


def test_a_file_is_downloaded_once(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    for _ in range(2):
        assert fetch(file, tmp_path / "cache").read_bytes() == CONTENT
    assert len(web.requests) == 1
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {
        "data.bin", "data.bin.lock", "data.bin.verified",
    }  # fmt: skip


def test_sha256_is_understood_as_well(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    stated = RemoteFile(file.name, file.urls, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert fetch(stated, tmp_path / "cache").read_bytes() == CONTENT


def test_what_was_broken_off_goes_on_where_it_was(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    web.breaks = [400_000, 300_000]
    assert fetch(file, tmp_path / "cache").read_bytes() == CONTENT
    ranges = [asked for _, _, asked in web.requests]
    assert ranges == [None, "bytes=400000-", "bytes=700000-"]


def test_a_server_without_ranges_sends_all_of_it_again(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    web.ranges = False
    web.breaks = [500_000]
    assert fetch(file, tmp_path / "cache").read_bytes() == CONTENT


def test_a_download_that_was_killed_is_taken_up_by_the_next(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(file, tmp_path / "cache").read_bytes() == CONTENT
    assert web.requests[0][2] == "bytes=1000-"


def test_a_part_of_something_else_is_thrown_away(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data.bin.part").write_bytes(b"x" * 5000)
    assert fetch(file, tmp_path / "cache").read_bytes() == CONTENT
    (tmp_path / "cache" / "data.bin").unlink()
    (tmp_path / "cache" / "data.bin.part").write_bytes(CONTENT + b"more")  # the server has no such range
    assert fetch(file, tmp_path / "cache").read_bytes() == CONTENT


def test_another_checksum_is_an_error_and_leaves_no_file(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    (tmp_path / "web" / "data.bin").write_bytes(CONTENT[::-1])
    with pytest.raises(DownloadError) as caught:
        fetch(file, tmp_path / "cache")
    assert f"has the checksum {md5(CONTENT[::-1])}, not {file.checksum}" in str(caught.value)
    assert not (tmp_path / "cache" / "data.bin").exists()
    assert not (tmp_path / "cache" / "data.bin.part").exists()


def test_a_second_address_is_tried(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    both = RemoteFile(file.name, (f"{web.url}/gone/data.bin", *file.urls), file.checksum)
    assert fetch(both, tmp_path / "cache").read_bytes() == CONTENT
    assert [path for _, path, _ in web.requests] == ["/gone/data.bin", "/data.bin"]


def test_a_server_that_fails_for_good_is_named(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    web.status = 503
    with pytest.raises(DownloadError, match=r"/data.bin: 503 Service Unavailable"):
        fetch(file, tmp_path / "cache")
    assert len(web.requests) == 4


def test_without_a_network_it_is_said_where_to_put_the_file(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        file = RemoteFile("data.bin", (f"http://127.0.0.1:{closed.getsockname()[1]}/data.bin",), md5(CONTENT))
        with pytest.raises(DownloadError) as caught:
            fetch(file, tmp_path / "cache")
    assert f"put the file there by hand: {tmp_path / 'cache' / 'data.bin'} ({file.checksum})" in str(caught.value)
    (tmp_path / "cache" / "data.bin").write_bytes(CONTENT)
    assert fetch(file, tmp_path / "cache").read_bytes() == CONTENT


def test_a_file_put_there_by_hand_is_verified(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data.bin").write_bytes(b"something else")
    with pytest.raises(DownloadError, match=r"data.bin is not data.bin: it should have the checksum md5:"):
        fetch(file, tmp_path / "cache")
    assert not web.requests


def _fetch_in_process(file: RemoteFile, folder: Path, start: Any, told: Any) -> None:
    start.wait()
    told.put(hashlib.md5(fetch(file, folder).read_bytes()).hexdigest())


def test_processes_that_start_together_download_once(tmp_path: Path, web: Web) -> None:
    file = published(tmp_path, web)
    context = multiprocessing.get_context("fork")
    start, told = context.Event(), context.Queue()
    workers = [
        context.Process(target=_fetch_in_process, args=(file, tmp_path / "cache", start, told)) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    start.set()
    found = [told.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join(30)
    assert {f"md5:{digest}" for digest in found} == {file.checksum}
    assert len(web.requests) == 1


def test_a_lock_that_nobody_gives_back_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_SILENT_S", 0.2)
    with (
        download.locked(tmp_path / "lock", tmp_path / "part"),
        pytest.raises(DownloadError, match=r"process \d+ has had .*lock"),
        download.locked(tmp_path / "lock", tmp_path / "part"),
    ):
        pass


# ---- what is in the files


def idx(array: np.ndarray[Any, Any]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize(("name", "sums", "mirrors"), [
    ("mnist", "_MNIST_MD5", "_MNIST_FROM"), ("fashion-mnist", "_FASHION_MD5", "_FASHION_FROM"),
])  # fmt: skip
def test_mnist_is_read_from_its_format(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch, name: str, sums: str, mirrors: str
) -> None:
    drawn = np.random.default_rng(0)
    truth, stated = {}, {}
    for prefix, rows in (("train", 30), ("t10k", 10)):
        truth[prefix] = drawn.integers(0, 256, (rows, 28, 28)), drawn.integers(0, 10, rows)
        for kind, array in zip(("images-idx3", "labels-idx1"), truth[prefix], strict=True):
            data = idx(array)
            stated[f"{prefix}-{kind}-ubyte.gz"] = hashlib.md5(data).hexdigest()
            (tmp_path / "web" / f"{prefix}-{kind}-ubyte.gz").write_bytes(data)
    monkeypatch.setattr(pictures, sums, stated)
    monkeypatch.setattr(pictures, mirrors, (f"{web.url}/",))
    for _ in range(2):
        source = shoal.data.open(f"{name}:train[50%:]")
        images, labels = source.fetch(np.arange(15), 0, 0)
        assert images.shape == (15, 1, 28, 28)
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert np.array_equal(images[:, 0].numpy(), truth["train"][0][15:])
        assert np.array_equal(labels.numpy(), truth["train"][1][15:])
    assert len(shoal.data.open(name, "test")) == 10
    assert len(web.requests) == 4


def test_cifar10_is_read_from_its_binary_version(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(0)
    images = drawn.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    labels = drawn.integers(0, 10, 12, dtype=np.uint8)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    archive = tmp_path / "web" / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for number, name in reversed(list(enumerate(names))):  # they may lie in any order
            rows = slice(number * 2, number * 2 + 2)
            content = np.concatenate([labels[rows, None], images[rows].reshape(2, -1)], axis=1).tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    file = RemoteFile(archive.name, (f"{web.url}/{archive.name}",), md5(archive.read_bytes()))
    monkeypatch.setattr(pictures, "_CIFAR10", file)
    found, classes = shoal.data.open("cifar10", "train").fetch(np.arange(10), 0, 0)
    assert np.array_equal(found.numpy(), images[:10])
    assert np.array_equal(classes.numpy(), labels[:10])
    assert shoal.data.open("cifar10:test").fetch(np.arange(2), 0, 0)[1].tolist() == labels[10:].tolist()
    assert len(web.requests) == 1
    assert pictures.CIFAR10_CLASSES[3] == "cat"


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"))
    with pytest.raises(UserError, match="no file of the idx format"):
        pictures.read_idx(path)


# ---- one's own


def test_a_data_set_of_ones_own_is_opened_by_its_name() -> None:
    @register("squares", splits=("train", "odd"))
    def squares(split: str) -> Any:
        numbers = torch.arange(10) if split == "train" else torch.arange(1, 10, 2)
        return numbers, numbers**2

    assert shoal.data.open("squares:odd[1:3]").fetch(np.arange(2), 0, 0)[1].tolist() == [9, 25]
    with pytest.raises(ConfigError, match="'squares' has no split 'test': known: odd, train"):
        shoal.data.open("squares:test")
    with pytest.raises(ConfigError, match="did you mean 'squares'"):
        shoal.data.open("square:odd")

    @register("squares")
    def again(split: str) -> Any:
        return torch.zeros(3)

    assert len(shoal.data.open("squares:test")) == 3


def test_built_in_names_and_names_that_look_like_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="built-in"):
        register("mnist")
    with pytest.raises(ConfigError, match="must be of letters"):
        register("my/data")
