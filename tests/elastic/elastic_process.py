"""Real coordinators and members, for tests over sockets. Leases are long unless a test is about them: the machine may
be busy."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zmq

from shoal.comm.control import ControlPage
from shoal.elastic.keys import ClientKeys, RunKeys
from shoal.elastic.link import Link
from shoal.elastic.linked import Identity, LinkedAttendance
from shoal.elastic.messages import Ask
from shoal.elastic.process import CoordinatorSpec, serve
from shoal.elastic.terms import Terms

PATIENCE_S = 60.0
BEAT_S = 0.1
CALM = Terms(lease_s=30.0)


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait for what must come; returns it."""
    until = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.005)
    return found


@dataclass
class Coordination:
    """A coordinator in a process of its own."""

    spec: CoordinatorSpec
    pid: int = 0
    address: str = ""

    def start(self) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reading)
                serve(self.spec, lambda address: _tell(writing, address))
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            self.address = os.read(file.fileno(), 200).decode()
        assert self.address, "the coordinator did not start"
        self.spec = replace(self.spec, port=int(self.address.rpartition(":")[2]))

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    @property
    def keys(self) -> ClientKeys:
        return self.spec.keys.client()

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @contextlib.contextmanager
    def link(self) -> Iterator[Link]:
        link = Link(self.address, self.keys, BEAT_S)
        try:
            yield link
        finally:
            link.close()

    def report(self) -> dict[str, Any]:
        with self.link() as link:
            answer: dict[str, Any] = link.request(Ask(), PATIENCE_S)
            return answer

    @contextlib.contextmanager
    def worker(
        self, key: str, control: ControlPage, agent: str = "", start_timeout_s: float = PATIENCE_S
    ) -> Iterator[LinkedAttendance]:
        with self.link() as link:
            yield LinkedAttendance(
                link, Identity(key, agent, f"host-{key}", seat=int(key[1:])), control, start_timeout_s
            )


def _tell(writing: int, address: str) -> None:
    os.write(writing, address.encode())
    os.close(writing)


@contextlib.contextmanager
def coordination(terms: Terms = CALM, journal: str | None = None) -> Iterator[Coordination]:
    one = Coordination(CoordinatorSpec(RunKeys.make(), terms, journal=journal))
    one.start()
    try:
        yield one
    finally:
        one.kill()


@contextlib.contextmanager
def control_page() -> Iterator[ControlPage]:
    page = ControlPage()
    try:
        yield page
    finally:
        page.close()


@contextlib.contextmanager
def raw_socket(address: str, keys: ClientKeys | None) -> Iterator[zmq.Socket[bytes]]:
    """A plain ZeroMQ client, with these keys or without any."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    if keys is not None:
        socket.curve_serverkey = keys.server_public.encode()
        socket.curve_publickey = keys.client_public.encode()
        socket.curve_secretkey = keys.client_secret.encode()
    socket.setsockopt(zmq.LINGER, 0)
    try:
        yield socket
    finally:
        context.destroy(linger=0)
