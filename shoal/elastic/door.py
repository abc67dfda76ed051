"""The port of the coordinator: CURVE-encrypted, and open only to those who hold the run's client key."""

from __future__ import annotations

import time
from typing import Any

import zmq

from shoal.comm.curve import Gatekeeper, guarded_router
from shoal.elastic.keys import RunKeys
from shoal.elastic.messages import MAX_FRAME_BYTES


class Door:
    """Listens as soon as it is made. Used by one thread. Raises `UserError` if it cannot listen there."""

    def __init__(self, host: str, port: int, keys: RunKeys) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._gatekeeper = Gatekeeper(self._context, keys)
            self._router = guarded_router(self._context, host, port, keys, MAX_FRAME_BYTES)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.address: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._gatekeeper.socket, zmq.POLLIN)

    def receive(self, timeout_s: float, most: int) -> list[tuple[bytes, bytes]]:
        """What members have sent, with their connections' names; waits up to `timeout_s` for the first."""
        until = time.monotonic() + timeout_s
        while True:
            left_ms = max(0, int((until - time.monotonic()) * 1000) + 1)
            ready = dict(self._poller.poll(left_ms))
            if self._gatekeeper.socket in ready:
                self._gatekeeper.answer()
            if self._router in ready:
                return self._take(most)
            if time.monotonic() >= until:
                return []

    def send(self, identity: bytes, data: bytes) -> None:
        """Send to one connection; dropped if that is gone, or does not read."""
        self._router.send_multipart([identity, data], zmq.NOBLOCK)

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _take(self, most: int) -> list[tuple[bytes, bytes]]:
        taken = []
        for _ in range(most):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            # one frame is what we send: anything else becomes a message that cannot be decoded
            taken.append((frames[0], frames[1] if len(frames) == 2 else b""))
        return taken
