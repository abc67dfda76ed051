"""How a client comes in: it knocks at the CURVE door, is given a session, and opens a socket with it."""

from __future__ import annotations

import contextlib
import hmac
import socket
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.comm.bulk.desk import MAX_KNOCK_BYTES, knock, read_answer
from shoal.comm.bulk.errors import EntryRefused, RequestTimeout
from shoal.comm.bulk.session import PROOF_BYTES, Address, Session, host_id
from shoal.comm.curve import knocking_dealer
from shoal.comm.keys import ClientKeys
from shoal.core.errors import PeerLost

_SLICE_MS = 50  # how often a waiting thread looks whether it is still wanted
_RECONNECT_MS = 30
_SURELY = 3  # broken handshakes in a row: the server is there and does not open to this key


class Knocking:
    """One attempt to come in, within `deadline_s`. `cancelled` is asked now and then.

    Raises `PeerLost` if nobody listens there or the attempt was cancelled, `EntryRefused` if the key is not right, and
    `RequestTimeout` if there was no answer in time.
    """

    def __init__(
        self, address: Address, keys: ClientKeys, server: str, deadline_s: float, cancelled: Callable[[], bool]
    ) -> None:
        self._address, self._keys, self._server = address, keys, server
        self._cancelled = cancelled
        self._begun_s = time.monotonic()
        self._until_s = self._begun_s + deadline_s

    def enter(self, name: str, way: str, encrypt: str) -> tuple[socket.socket, Session]:
        """The socket, proved on both sides, and the session."""
        answer = self._knock(knock(host_id(), name, way, encrypt))
        found = read_answer(answer, name)
        if isinstance(found, str):
            raise PeerLost(f"{self._server} refuses the connection: {found}")
        session, port, local = found
        sock = self._open(local, port)
        try:
            sock.sendall(session.greeting())
            proof = b""
            while len(proof) < PROOF_BYTES:
                sock.settimeout(self._left_s())
                heard = sock.recv(PROOF_BYTES - len(proof))
                if not heard:
                    raise PeerLost(f"{self._server} closed the connection while it was being made")
                proof += heard
            if not hmac.compare_digest(proof, session.proof("server")):
                raise EntryRefused(f"what answers at {self._address} is not the server that gave out the session")
        except TimeoutError:
            sock.close()
            raise self._timeout() from None
        except OSError as error:
            sock.close()
            raise PeerLost(f"the connection to {self._server} broke: {error.strerror}") from None
        except BaseException:
            sock.close()
            raise
        return sock, session

    def _open(self, local: bytes | None, port: int) -> socket.socket:
        try:
            if local is None:
                return socket.create_connection((self._address.host, port), timeout=self._left_s())
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(self._left_s())
                sock.connect(local)
            except BaseException:
                sock.close()
                raise
            return sock
        except TimeoutError:
            raise self._timeout() from None
        except OSError as error:
            raise PeerLost(f"cannot connect to {self._server}: {error.strerror}") from None

    def _knock(self, data: bytes) -> bytes:
        context: zmq.Context[Any] = zmq.Context()
        try:
            dealer = knocking_dealer(context, self._keys, MAX_KNOCK_BYTES)
            dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
            dealer.setsockopt(zmq.IPV6, self._address.is_six)
            monitor = dealer.get_monitor_socket()
            try:
                dealer.connect(f"tcp://{self._address}")
                dealer.send(data)
                return self._wait(dealer, monitor)
            finally:
                with contextlib.suppress(zmq.ZMQError):
                    dealer.disable_monitor()
        except zmq.ZMQError as error:
            raise PeerLost(f"cannot connect to {self._server}: {error.strerror}") from None
        finally:
            context.destroy(linger=0)

    def _wait(self, dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> bytes:
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        broken = 0
        while True:
            if self._cancelled():
                raise PeerLost(f"the connection to {self._server} is no longer wanted")
            ready = dict(poller.poll(min(_SLICE_MS, int(self._left_s() * 1000) + 1)))
            if dealer in ready:
                return dealer.recv()
            if monitor in ready:
                event = recv_monitor_message(monitor)["event"]
                broken += event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or broken >= _SURELY:
                    raise EntryRefused(
                        f"{self._server} does not let us in: it has another key. Every run has its own: take the key "
                        "file of the run that the server belongs to"
                    )
                if event == zmq.EVENT_CLOSED:
                    raise PeerLost(f"nobody listens at {self._address}, where {self._server} should be")

    def _left_s(self) -> float:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise self._timeout()
        return left_s

    def _timeout(self) -> RequestTimeout:
        return RequestTimeout(self._server, "the request for a connection", time.monotonic() - self._begun_s)
