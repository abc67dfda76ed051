"""What tests of the bulk transport share: ways, servers in threads and in processes, wires to be tampered with."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.comm.bulk import BulkClient, BulkServer, Message, Peer, Reply
from shoal.comm.bulk.envelope import Kind
from shoal.comm.bulk.errors import Ended
from shoal.comm.bulk.inlet import Inlet
from shoal.comm.bulk.memory import private_pool
from shoal.comm.bulk.outlet import Outgoing, Outlet, Traffic
from shoal.comm.bulk.seal import Seal, make_seal
from shoal.comm.keys import RunKeys

WAYS = {"shm": ("shm", "auto"), "authenticated": ("tcp", "off"), "encrypted": ("tcp", "on")}
NAMES = {"shm": "shm", "authenticated": "tcp, authenticated", "encrypted": "tcp, encrypted"}
DEADLINE_S = 60.0
KEYS = RunKeys.make()


def echo(peer: Peer, message: Message, reply: Reply) -> None:
    reply(Message(message.head, message.arrays))


@contextlib.contextmanager
def serving(handler: Callable[[Peer, Message, Reply], None] = echo, **options: Any) -> Iterator[BulkServer]:
    server = BulkServer("127.0.0.1:0", KEYS, handler, **options)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def connected(address: str, way: str = "shm", **options: Any) -> Iterator[BulkClient]:
    kind, encrypt = WAYS[way]
    client = BulkClient(address, KEYS.client(), way=kind, encrypt=encrypt, deadline_s=DEADLINE_S, **options)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        client.close()


class ServerProcess:
    """An echo server in a process of its own, which can be killed and frozen. Forked, as that takes no time."""

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                server = BulkServer(listen, KEYS, _process_handler, threaded=False)
                os.write(writer, server.addresses[0].encode())
                os.close(writer)
                server.run()
            finally:
                os._exit(1)
        os.close(writer)
        self.address = os.read(reader, 100).decode()
        os.close(reader)
        assert self.address, "the server process did not start"

    def freeze(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _process_handler(peer: Peer, message: Message, reply: Reply) -> None:
    if message.head.get("do") != "keep silent":
        reply(Message(message.head, message.arrays))


# a wire between an outlet and an inlet, on which everything can be done


class Wire:
    """The bytes of messages as they go over TCP, message by message."""

    key = bytes(range(32))

    def __init__(self, messages: list[Message], encrypted: bool) -> None:
        self.encrypted = encrypted
        near, far = socket.socketpair(socket.AF_UNIX)
        with near, far:
            near.setblocking(False)
            outlet = Outlet(near, self.seal(), None, Traffic())
            self.frames = []
            for number, message in enumerate(messages):
                outlet.put(Outgoing(Kind.REQUEST, number, message))
                parts = []
                while True:
                    outlet.flush()
                    with contextlib.suppress(BlockingIOError):
                        while part := far.recv(1 << 20, socket.MSG_DONTWAIT):
                            parts.append(part)
                    if not outlet.blocked:
                        break
                self.frames.append(b"".join(parts))

    def seal(self, direction: str = "client to server") -> Seal:
        return make_seal(self.key, direction, self.encrypted)

    def deliver(self, data: bytes, direction: str = "client to server") -> tuple[list[Message], str]:
        """Let `data` arrive: the messages that are passed on, and why the connection ended ("" if it did not)."""
        return deliver(data, self.seal(direction))


def deliver(data: bytes, seal: Seal) -> tuple[list[Message], str]:
    passed: list[Message] = []
    near, far = socket.socketpair(socket.AF_UNIX)
    with near, far:
        far.setblocking(False)
        inlet = Inlet(
            far, seal, None, Traffic(), private_pool(), lambda kind, number, message: passed.append(message), _no_offer
        )
        try:
            view = memoryview(data)
            while view:
                view = view[near.send(view[: 64 << 10]) :]
                inlet.fill()
        except Ended as end:
            return passed, str(end)
        finally:
            inlet.close()
    return passed, ""


def _no_offer(kind: Kind, number: int, head: Any, specs: Any) -> None:
    return None


def flipped(data: bytes, position: int, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def same(one: Message, other: Message) -> bool:
    return one.head == other.head and all(
        a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
        for a, b in zip(one.arrays, other.arrays, strict=True)
    )


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def eventually(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, f"waited in vain: {what}"
        threading.Event().wait(0.01)
