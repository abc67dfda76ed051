"""Bandwidth and latency between two hosts, over TCP as it is: what is sent are zeros, so nothing needs to be hidden,
but nobody without the token is served.

Who connects is sent a challenge and answers with its HMAC under the token of this examination, which came to it over
the authenticated channel; anything else is closed unanswered. Every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType

_CHALLENGE_BYTES = 32
_CHUNK_BYTES = 1 << 18
_PINGS = 15
_WAIT_S = 3.0  # for the other side to go on
_RECEIVE_S = 0.5  # no way is measured for longer
LIMIT_S = 4.0  # for all that a measurement takes beside sending
_SERVED_AT_ONCE = 8
_SIZE = struct.Struct("!Qd")


@dataclass(frozen=True)
class Measurement:
    """Of one way, from who measured to `LinkServer`. `latency_s` is for there and back, the median of several."""

    bytes_per_s: float
    latency_s: float


class LinkServer:
    """Serves measurements on one address until it is closed. It has threads of its own."""

    def __init__(self, address: str, token: bytes) -> None:
        self._token = token
        self._socket = socket.create_server((address, 0))
        self._socket.settimeout(0.2)
        self._free = threading.Semaphore(_SERVED_AT_ONCE)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="shoal-doctor-link", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def _accept(self) -> None:
        serving: list[threading.Thread] = []
        while not self._closing.is_set():
            try:
                link, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                break
            if not self._free.acquire(blocking=False):  # a flood: who has the token tries again
                link.close()
                continue
            serving = [thread for thread in serving if thread.is_alive()]
            serving.append(threading.Thread(target=self._serve, args=(link,), name="shoal-doctor-served", daemon=True))
            serving[-1].start()
        for thread in serving:
            thread.join(2 * _WAIT_S)

    def _serve(self, link: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._free.release)
            stack.enter_context(link)
            stack.enter_context(contextlib.suppress(OSError))
            link.settimeout(_WAIT_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = os.urandom(_CHALLENGE_BYTES)
            link.sendall(challenge)
            if not hmac.compare_digest(_receive(link, _CHALLENGE_BYTES), _answer(self._token, challenge)):
                return
            for _ in range(_PINGS):
                link.sendall(_receive(link, 1))
            received, begun = 0, time.monotonic()
            while not self._closing.is_set() and (data := link.recv(_CHUNK_BYTES)):
                received += len(data)
                if time.monotonic() - begun > _RECEIVE_S:  # a slow link: what lies in buffers is not waited for
                    break
            link.sendall(_SIZE.pack(received, time.monotonic() - begun))
            while not self._closing.is_set() and link.recv(_CHUNK_BYTES):  # until the answer has been read
                pass

    def close(self) -> None:
        """May be called twice."""
        self._closing.set()
        self._thread.join(3 * _WAIT_S)
        self._socket.close()

    def __enter__(self) -> LinkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def measure(address: str, port: int, token: bytes, seconds: float, limit_s: float = LIMIT_S) -> Measurement:
    """Send to a `LinkServer` for so long. Raises `OSError` (also `TimeoutError`) if it cannot be reached, or if all of
    it takes more than `limit_s` longer."""
    over_s = time.monotonic() + seconds + limit_s
    with socket.create_connection((address, port), timeout=_left(over_s)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(_left(over_s))
        link.sendall(_answer(token, _receive(link, _CHALLENGE_BYTES)))
        pings = []
        for _ in range(_PINGS):
            link.settimeout(_left(over_s))
            begun = time.monotonic()
            link.sendall(b".")
            _receive(link, 1)
            pings.append(time.monotonic() - begun)
        zeros = memoryview(bytes(_CHUNK_BYTES))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            link.settimeout(_left(over_s))
            link.sendall(zeros)
        link.shutdown(socket.SHUT_WR)
        link.settimeout(_left(over_s))
        received, elapsed_s = _SIZE.unpack(_receive(link, _SIZE.size))
        # what lies in buffers is of no use to anybody, and would be in the way of the next
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return Measurement(received / max(elapsed_s, 1e-9), statistics.median(pings))


def _left(over_s: float) -> float:
    """How long the other side may take for its next answer where all must be over at `over_s`."""
    left_s = over_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return min(_WAIT_S, left_s)


def _answer(token: bytes, challenge: bytes) -> bytes:
    return hmac.new(token, challenge, hashlib.sha256).digest()


def _receive(link: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        data = link.recv(size - len(received))
        if not data:
            raise ConnectionError("the other side has closed the connection")
        received += data
    return received
