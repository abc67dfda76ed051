"""The port of the coordinator: CURVE-encrypted, and open only to those who hold the run's client key."""

from __future__ import annotations

import hmac
import time
from typing import Any

import zmq
from zmq.utils import z85

from shoal.core.errors import UserError
from shoal.elastic.keys import RunKeys
from shoal.elastic.messages import MAX_FRAME_BYTES

_ZAP_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks whom to let in: RFC 27
_ZAP_VERSION = b"1.0"
_QUEUE = 256  # messages to or from one peer
_HANDSHAKE_MS = 5000
_HEARTBEAT_MS = 5000
_DEAD_AFTER_MS = 20000
_BIND_PATIENCE_S = 5.0


class Door:
    """Listens as soon as it is made. Used by one thread. Raises `UserError` if it cannot listen there."""

    def __init__(self, host: str, port: int, keys: RunKeys) -> None:
        self._client_key = z85.decode(keys.client_public.encode())
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.bind(_ZAP_ADDRESS)
            self._router = self._open(host, port, keys)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.address: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._zap, zmq.POLLIN)

    def _open(self, host: str, port: int, keys: RunKeys) -> zmq.Socket[bytes]:
        router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        router.curve_server = True
        router.curve_secretkey = keys.server_secret.encode()
        router.zap_domain = b"shoal"
        router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        router.setsockopt(zmq.RCVHWM, _QUEUE)
        router.setsockopt(zmq.SNDHWM, _QUEUE)
        router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        router.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, _DEAD_AFTER_MS)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.IPV6, ":" in host)
        where = f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}"
        until = time.monotonic() + _BIND_PATIENCE_S
        while True:
            try:
                router.bind(where)
                return router
            except zmq.ZMQError as error:
                # the one that we replace may not be quite gone
                if error.errno != zmq.EADDRINUSE or time.monotonic() > until:
                    raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None
                time.sleep(0.05)

    def receive(self, timeout_s: float, most: int) -> list[tuple[bytes, bytes]]:
        """What members have sent, with their connections' names; waits up to `timeout_s` for the first."""
        until = time.monotonic() + timeout_s
        while True:
            left_ms = max(0, int((until - time.monotonic()) * 1000) + 1)
            ready = dict(self._poller.poll(left_ms))
            if self._zap in ready:
                self._let_in_or_not()
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

    def _let_in_or_not(self) -> None:
        """Answer one question of libzmq: does this client hold the run's key?"""
        frames = self._zap.recv_multipart()
        version, request, _domain, _address, _identity, mechanism, *credentials = [*frames, *[b""] * 6][
            : max(6, len(frames))
        ]
        known = len(credentials) == 1 and hmac.compare_digest(credentials[0], self._client_key)
        welcome = version == _ZAP_VERSION and mechanism == b"CURVE" and known
        status, text = (b"200", b"OK") if welcome else (b"400", b"no entry")
        self._zap.send_multipart([_ZAP_VERSION, request, status, text, b"", b""])
