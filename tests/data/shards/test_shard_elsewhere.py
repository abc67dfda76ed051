"""Prepared data sets on real HDFS and real S3, over links that fail: every sample comes once, in order."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from shard_cases import assert_numbered, numbered_data_set, requests, settings

from shoal.core.cursor import Batches
from shoal.data.loader import Loader
from shoal.data.places import Place
from shoal.data.shards import ShardSource

SAMPLES = 600
OPENED = 20  # requests after which nothing is left to be said before training
Fault = Callable[[int], str]  # of the number of what a client sends: "", "cut" or "stall"


class FaultyLink:
    """Passes on what is sent to `target`, and fails as it is told: connections are cut, or nothing comes any more."""

    def __init__(self, target: tuple[str, int], fault: Fault) -> None:
        self._target, self._fault = target, fault
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.asked, self.faults = 0, list[str]()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                threading.Thread(target=self._there, args=(near, far), daemon=True).start()
                threading.Thread(target=self._back, args=(near, far), daemon=True).start()

    def _there(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                with self._lock:
                    fault = self._fault(self.asked)
                    self.asked += 1
                    self.faults += [fault] if fault else []
                if fault == "stall":
                    continue  # it never arrives
                if fault == "cut":
                    break
                far.sendall(data)
        self._end(near, far)

    def _back(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                near.sendall(data)
        self._end(near, far)

    def _end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()
        self._end(*self._open)


@contextlib.contextmanager
def link(url: str, fault: Fault) -> Iterator[FaultyLink]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    made = FaultyLink((parts.hostname, parts.port), fault)
    try:
        yield made
    finally:
        made.close()


def one_in_five(*kinds: str) -> Fault:
    """After the data set has been opened: what is wrong then is said at once."""

    def fault(number: int) -> str:
        drawn = random.Random(number)
        return drawn.choice(kinds) if number > OPENED and drawn.random() < 0.2 else ""

    return fault


def epoch(data: ShardSource) -> list[int]:
    loads = Loader(data, 7, batches=Batches(len(data), 32, 2))
    seen: list[int] = []
    for loaded in loads.stream(requests(len(data), 32, 0)):
        assert_numbered(loaded)
        seen += loaded.indices.tolist()
    assert seen == loads.order.at(0, 0, SAMPLES).tolist()
    return seen


def test_s3_where_one_request_in_five_is_cut_off_or_stalls(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered_data_set(f"{s3}/faulty", SAMPLES, rows=10, per_shard=20)
    with link(os.environ["AWS_ENDPOINT_URL"], one_in_five("cut", "stall")) as faulty:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{faulty.port}")
        data = ShardSource(f"{s3}/faulty", settings=settings(memory_mib=0.005, stall_s=0.3))
        assert sorted(epoch(data)) == list(range(SAMPLES))
        assert {"cut", "stall"} <= set(faulty.faults)
        assert len(faulty.faults) > 0.1 * (faulty.asked - OPENED)


def test_hdfs_where_the_name_node_is_cut_off_again_and_again(hdfs: str) -> None:
    numbered_data_set(f"{hdfs}/faulty", SAMPLES, rows=10, per_shard=20)
    with link(hdfs, one_in_five("cut")) as faulty:
        parts = urlsplit(hdfs)
        place = Place.of(f"hdfs://127.0.0.1:{faulty.port}{parts.path}/faulty")
        data = ShardSource(place, settings=settings(memory_mib=0.005, stall_s=0.3))
        assert sorted(epoch(data)) == list(range(SAMPLES))
        assert len(faulty.faults) > 0.1 * (faulty.asked - OPENED) > 0
