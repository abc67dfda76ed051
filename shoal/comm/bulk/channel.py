"""One open connection: a socket, what seals it, and the memory it shares, if any."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

from shoal.comm.bulk.blocks import Borrower, Lender
from shoal.comm.bulk.envelope import Kind
from shoal.comm.bulk.inlet import Inlet, Offer, OnFrame
from shoal.comm.bulk.memory import Pool, Private
from shoal.comm.bulk.message import Bytes, Message
from shoal.comm.bulk.outlet import Outgoing, Outlet, SharedMemory, Traffic
from shoal.comm.bulk.seal import NoSeal, Seal, make_seal
from shoal.comm.bulk.session import Session

_TO_SERVER, _TO_CLIENT = "client to server", "server to client"
_UNANSWERED_MS = 30_000  # a host that does not acknowledge for so long is gone
_MOST_QUEUED_BYTES = 256 << 20

_inheritable: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def keep_from_children(sock: socket.socket) -> socket.socket:
    """Have `sock` closed in every child that is forked: while a child held it, nobody would see its owner die."""
    _inheritable.add(sock)
    return sock


def _close_inherited() -> None:
    for sock in list(_inheritable):
        with contextlib.suppress(OSError):
            sock.close()


os.register_at_fork(after_in_child=_close_inherited)


class Channel:
    """Ready when made; `sock` is its own from then on. Used by one thread at a time, but for `buffer`.

    `fill` and `flush` raise `Ended` when the connection is over; then `close` is all that is left to do.
    """

    def __init__(
        self,
        sock: socket.socket,
        session: Session,
        is_server: bool,
        traffic: Traffic,
        pool: Pool[Private],
        on_frame: OnFrame,
        offer: Offer,
    ) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            tune(sock)
        self.session = session
        self._socket, self._pool = keep_from_children(sock), pool
        self._shared = SharedMemory(Lender(), Borrower()) if session.way == "shm" else None
        out, back = (_TO_CLIENT, _TO_SERVER) if is_server else (_TO_SERVER, _TO_CLIENT)
        self._outlet = Outlet(sock, _seal(session, out), self._shared, traffic)
        self._inlet = Inlet(sock, _seal(session, back), self._shared, traffic, pool, on_frame, offer)
        self.closed = False
        self.watched = 0  # for which events; whoever watches it notes it here

    @property
    def way(self) -> str:
        if self.session.way == "shm":
            return "shm"
        return "tcp, encrypted" if self.session.encrypted else "tcp, authenticated"

    @property
    def blocked(self) -> bool:
        """Whether something is to be sent as soon as the socket takes it."""
        return self._outlet.blocked

    @property
    def full(self) -> bool:
        """Whether the other side should read before it is read from."""
        return self._outlet.queued_bytes > _MOST_QUEUED_BYTES

    def fileno(self) -> int:
        return self._socket.fileno()

    def buffer(self, nbytes: int) -> Bytes:
        """Memory in which arrays can be sent without a copy, where that is possible. From any thread."""
        return (self._pool.lend if self._shared is None else self._shared.lender.buffer)(nbytes)

    def put(self, outgoing: Outgoing) -> None:
        self._outlet.put(outgoing)

    def flush(self) -> None:
        self._outlet.flush()

    def fill(self) -> None:
        self._inlet.fill()

    def tick(self, now_s: float) -> None:
        """From time to time: give memory back, and tell the other side what it may use again."""
        if self._shared is None:
            return
        self._shared.lender.trim(now_s)
        if not self._outlet.blocked and (self._shared.lender.has_news or self._shared.borrower.has_news):
            self.put(Outgoing(Kind.NOTICE, 0, Message({})))
            self.flush()

    def close(self) -> None:
        """May be called twice. Arrays that were received stay what they are."""
        self.closed = True
        self._inlet.close()
        if self._shared is not None:
            self._shared.lender.close()
        self._socket.close()


def tune(sock: socket.socket) -> None:
    """For short messages without delay, and an end when the other host is gone without a word."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


def _seal(session: Session, direction: str) -> Seal:
    return NoSeal() if session.way == "shm" else make_seal(session.key, direction, session.encrypted)
