"""Doors of a run: ports that are CURVE-encrypted and open only to those who hold the run's client key."""

from __future__ import annotations

import hmac
import time
from typing import Any

import zmq
from zmq.utils import z85

from shoal.comm.keys import ClientKeys, RunKeys
from shoal.core.errors import UserError

_ZAP_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks whom to let in: RFC 27
_ZAP_VERSION = b"1.0"
_QUEUE = 256  # messages to or from one peer
_HANDSHAKE_MS = 5000
_HEARTBEAT_MS = 5000
_DEAD_AFTER_MS = 20000
_BIND_PATIENCE_S = 5.0


class Gatekeeper:
    """Answers libzmq's question, for all guarded sockets of one context: does this client hold the run's key?

    To be made before the first guarded socket. `socket` is to be polled; when it is readable, `answer` one question.
    """

    def __init__(self, context: zmq.Context[Any], keys: RunKeys) -> None:
        self._client_key = z85.decode(keys.client_public.encode())
        self.socket = context.socket(zmq.REP)
        self.socket.bind(_ZAP_ADDRESS)

    def answer(self) -> None:
        frames = self.socket.recv_multipart()
        version, request, _domain, _address, _identity, mechanism, *credentials = [*frames, *[b""] * 6][
            : max(6, len(frames))
        ]
        known = len(credentials) == 1 and hmac.compare_digest(credentials[0], self._client_key)
        welcome = version == _ZAP_VERSION and mechanism == b"CURVE" and known
        status, text = (b"200", b"OK") if welcome else (b"400", b"no entry")
        self.socket.send_multipart([_ZAP_VERSION, request, status, text, b"", b""])


def guarded_router(
    context: zmq.Context[Any], host: str, port: int, keys: RunKeys, max_frame_bytes: int
) -> zmq.Socket[bytes]:
    """A ROUTER that listens at `host` and `port` (0: any). Its context needs a `Gatekeeper`.

    Raises `UserError` if it cannot listen there."""
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_secretkey = keys.server_secret.encode()
    router.zap_domain = b"shoal"
    router.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
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


def knocking_dealer(context: zmq.Context[Any], keys: ClientKeys, max_frame_bytes: int) -> zmq.Socket[bytes]:
    """A DEALER that proves itself with the run's client key, to a server with the run's server key. Not connected."""
    dealer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    dealer.curve_serverkey = keys.server_public.encode()
    dealer.curve_publickey = keys.client_public.encode()
    dealer.curve_secretkey = keys.client_secret.encode()
    dealer.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    dealer.setsockopt(zmq.LINGER, 0)
    return dealer
