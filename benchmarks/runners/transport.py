"""One transport of the comparison: an array goes to a server process and comes back, as often as asked.

    python -m benchmarks.runners.transport echo      # then one line of JSON a measurement, on standard input

Each measurement {"mib": 25, "repeat": 5} is answered with {"seconds": [...]}: five times of one exchange each, by the
client's clock. The server is a process of its own, started here. What all have in common: the client has an array, and
afterwards an array of the same size and content that came from the server; the server has the whole of it before it
answers; connections, buffers and object stores are warm.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Exchange = Callable[[Array], Any]  # what comes back is turned into an array by `np.asarray`
_READY = "ready "


@contextlib.contextmanager
def serving(*words: str) -> Iterator[str]:
    """Run this module as a server; yields what it says once it is ready. It ends with its standard input."""
    command = [sys.executable, "-m", "benchmarks.runners.transport", "--serve", *words]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        line = next((line for line in server.stdout if line.startswith(_READY)), None)
        if line is None:
            raise SystemExit("the server did not start")
        yield line.removeprefix(_READY).strip()
    finally:
        server.stdin.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _say_ready(what: object) -> None:
    print(f"{_READY}{what}", flush=True)


# raw TCP: what the machine itself gives


def _receive_all(sock: socket.socket, view: memoryview) -> None:
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise EOFError
        view = view[count:]


def serve_echo() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _say_ready(listener.getsockname()[1])
        sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffers: dict[int, memoryview] = {}
    length = memoryview(bytearray(8))
    with sock, contextlib.suppress(EOFError):
        while True:
            _receive_all(sock, length)
            size = int.from_bytes(length, "big")
            buffer = buffers.setdefault(size, memoryview(bytearray(size)))
            _receive_all(sock, buffer)
            sock.sendall(buffer)


@contextlib.contextmanager
def echo() -> Iterator[Exchange]:
    """Whole messages over a plain socket, in memory that is there already: neither checked nor encrypted."""
    with serving("echo") as port, socket.create_connection(("127.0.0.1", int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        results: dict[int, Any] = {}

        def exchange(array: Array) -> Any:
            if array.nbytes not in results:
                results[array.nbytes] = np.zeros_like(array)
            result = results[array.nbytes]
            sock.sendall(array.nbytes.to_bytes(8, "big"))
            sock.sendall(memoryview(array).cast("B"))
            _receive_all(sock, memoryview(result).cast("B"))
            return result

        yield exchange


# Ray


@contextlib.contextmanager
def ray_actor() -> Iterator[Exchange]:
    """A method of an actor that returns its argument, through Ray's object store."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)

    class Server:
        def exchange(self, array: Any) -> Any:
            return array

    server = ray.remote(Server).remote()
    try:
        yield lambda array: ray.get(server.exchange.remote(array))
    finally:
        ray.shutdown()


# torch RPC


def _same(tensor: Any) -> Any:
    return tensor


def serve_rpc(port: str) -> None:
    from torch.distributed import rpc

    _say_ready("")
    _rpc_options(port)
    rpc.init_rpc("server", rank=1, world_size=2)
    rpc.shutdown()


def _rpc_options(port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    import torch

    torch.set_num_threads(1)


@contextlib.contextmanager
def torch_rpc() -> Iterator[Exchange]:
    """`rpc_sync` of a function that returns its argument."""
    import torch
    from torch.distributed import rpc

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    with serving("rpc", port):
        _rpc_options(port)
        rpc.init_rpc("client", rank=0, world_size=2)
        yield lambda array: rpc.rpc_sync("server", _same, args=(torch.from_numpy(array),))
        rpc.shutdown()


# Shoal


def serve_shoal(keys: str) -> None:
    from shoal.comm.bulk import BulkServer, Message, Peer, Reply
    from shoal.comm.keys import RunKeys

    def handle(peer: Peer, message: Message, reply: Reply) -> None:
        reply(Message({}, message.arrays))

    server = BulkServer("127.0.0.1:0", RunKeys(**json.loads(keys)), handle, threaded=False)
    _say_ready(server.addresses[0])

    def end_with_input() -> None:
        sys.stdin.read()
        server.stop()

    threading.Thread(target=end_with_input, daemon=True).start()
    server.run()
    server.close()


class InPlace:
    """An exchange of arrays that were computed where they can be sent from: `prepare` is not part of the time."""

    def __init__(self, exchange: Exchange, buffer: Callable[[int], Array]) -> None:
        self._exchange, self._buffer = exchange, buffer

    def prepare(self, array: Array) -> Array:
        prepared = self._buffer(array.nbytes).view(array.dtype)
        prepared[...] = array
        return prepared

    def __call__(self, array: Array) -> Any:
        return self._exchange(array)


@contextlib.contextmanager
def shoal(way: str, encrypt: str, in_place: bool = False) -> Iterator[Exchange]:
    from dataclasses import asdict

    from shoal.comm.bulk import BulkClient, Message
    from shoal.comm.keys import RunKeys

    keys = RunKeys.make()
    with serving("shoal", json.dumps(asdict(keys))) as address:
        client = BulkClient(address, keys.client(), way=way, encrypt=encrypt)  # type: ignore[arg-type]

        def exchange(array: Array) -> Any:
            return client.request(Message({}, [array]), 60.0).arrays[0]

        yield InPlace(exchange, client.buffer) if in_place else exchange
        client.close()


# Shoal's store, which is what training pushes to and pulls from


def serve_store(encrypt: str) -> None:
    """As `shoal kvstore` does it: this process keeps one server, which is its child."""
    import tempfile

    from shoal.store.fleet import Fleet
    from shoal.store.terms import FleetTerms

    with tempfile.TemporaryDirectory(prefix="transport-store-") as directory:
        terms = FleetTerms(encrypt=encrypt)  # type: ignore[arg-type]
        with Fleet(directory, terms) as fleet:
            fleet.wait_ready()
            _say_ready(directory)
            sys.stdin.read()


@contextlib.contextmanager
def store(way: str, encrypt: str) -> Iterator[Exchange]:
    """`push_pull` of a key that is overwritten by what is pushed: the server takes the array in, keeps it, and answers
    with what it holds then, which goes to memory that is there already."""
    from functools import partial

    from shoal.store import client
    from shoal.store.kvstore import KVStore

    # one host shares memory of its own accord
    client.BulkClient = partial(client.BulkClient, way=way)  # type: ignore[misc,assignment]
    with serving("store", encrypt) as directory, KVStore(directory) as kv:
        results: dict[str, Array] = {}

        def exchange(array: Array) -> Any:
            key = f"{array.nbytes} bytes"
            if key not in results:
                kv.declare(key, array.shape, array.dtype, updater="assign")
                results[key] = np.zeros_like(array)
            return kv.push_pull(key, array, out=results[key])

        yield exchange


PEERS: dict[str, Callable[[], contextlib.AbstractContextManager[Exchange]]] = {
    "echo": echo,
    "ray": ray_actor,
    "rpc": torch_rpc,
    "shm": lambda: shoal("shm", "off"),
    "in-place": lambda: shoal("shm", "off", in_place=True),
    "authenticated": lambda: shoal("tcp", "off"),
    "encrypted": lambda: shoal("tcp", "on"),
    "store-shm": lambda: store("shm", "off"),
    "store-authenticated": lambda: store("tcp", "off"),
    "store-encrypted": lambda: store("tcp", "on"),
}
SERVERS: dict[str, Callable[..., None]] = {
    "echo": serve_echo,
    "rpc": serve_rpc,
    "shoal": serve_shoal,
    "store": serve_store,
}


def measure(exchange: Exchange, mib: int, repeat: int) -> list[float]:
    array = np.random.default_rng(mib).integers(0, 255, mib << 20, dtype=np.uint8).view(np.float32)
    times = []
    for number in range(repeat + 2):  # the first two are not counted: memory is touched, caches fill
        sent = exchange.prepare(array) if isinstance(exchange, InPlace) else array
        begun = time.perf_counter()
        result = exchange(sent)
        took = time.perf_counter() - begun
        if number >= 2:
            times.append(took)
        if number in (0, repeat + 1) and not np.array_equal(np.asarray(result).view(np.uint8), array.view(np.uint8)):
            raise SystemExit("what came back is not what was sent")
        del result, sent
    return times


def main() -> None:
    if sys.argv[1] == "--serve":
        SERVERS[sys.argv[2]](*sys.argv[3:])
        return
    with PEERS[sys.argv[1]]() as exchange:
        _say_ready("")
        for line in sys.stdin:
            wanted = json.loads(line)
            print(json.dumps({"seconds": measure(exchange, wanted["mib"], wanted["repeat"])}), flush=True)


if __name__ == "__main__":
    main()
