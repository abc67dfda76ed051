"""Where clients come in: a CURVE door that hands out sessions, and the sockets on which they come back with one.

Nothing of a client is read before it has proved itself: libzmq asks for the run's key before it passes on a knock, and
a socket that does not begin with the 48 bytes of a valid session is closed.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zmq

from shoal.comm.bulk.channel import keep_from_children
from shoal.comm.bulk.desk import MAX_KNOCK_BYTES, Desk
from shoal.comm.bulk.loop import READ, Loop
from shoal.comm.bulk.session import GREETING_BYTES, Address, Encrypt, Session, host_id
from shoal.comm.curve import Gatekeeper, guarded_router
from shoal.comm.keys import RunKeys
from shoal.core.errors import UserError

_GREETING_S = 10.0  # for a fresh socket to prove itself
_MOST_STRANGERS = 256  # sockets that have not proved themselves
_KNOCKS_A_TURN = 64

OnEnter = Callable[[socket.socket, Session, str], None]


class _Stranger:
    """A socket that has not proved itself."""

    def __init__(self, sock: socket.socket, local: bool, host: str) -> None:
        self.socket, self.local, self.host = sock, local, host
        self.greeting = b""
        self.until_s = time.monotonic() + _GREETING_S


class Entrance:
    """Listens as soon as it is made; served by `loop`. `on_enter(socket, session, host)` gets those who have proved
    themselves, with all that they have sent still to be read. Raises `UserError` if it cannot listen there."""

    def __init__(
        self, loop: Loop, listen: Sequence[Address], keys: RunKeys, encrypt: Encrypt, on_enter: OnEnter
    ) -> None:
        self._loop, self._on_enter = loop, on_enter
        self._listeners: list[socket.socket] = []
        self._strangers: dict[int, _Stranger] = {}
        self._context: zmq.Context[Any] = zmq.Context()
        self._doors: list[tuple[zmq.Socket[bytes], int]] = []  # and the TCP port that belongs to it
        try:
            host = host_id()
            self._desk = Desk(encrypt, host, self._open_local() if host else None)
            self._gatekeeper = Gatekeeper(self._context, keys)
            self.addresses = tuple(self._open(address, keys) for address in listen)
            for sock in (self._gatekeeper.socket, *(door for door, _ in self._doors)):
                loop.watch(_descriptor(sock), READ, lambda events: self._serve_doors())
        except BaseException:
            self.close()
            raise

    def tick(self, now_s: float) -> None:
        """From time to time: close what has not proved itself in time."""
        for stranger in list(self._strangers.values()):
            if stranger.until_s < now_s:
                self._turn_away(stranger)
        self._serve_doors()  # their descriptors tell of a change only once

    def close(self) -> None:
        for stranger in list(self._strangers.values()):
            self._turn_away(stranger)
        for listener in self._listeners:
            self._loop.forget(listener.fileno())
            listener.close()
        self._listeners.clear()
        for sock in self._guarded():
            self._loop.forget(_descriptor(sock))
        self._doors.clear()
        self._context.destroy(linger=0)

    def _guarded(self) -> list[zmq.Socket[bytes]]:
        first = [self._gatekeeper.socket] if hasattr(self, "_gatekeeper") and not self._context.closed else []
        return [*first, *(door for door, _ in self._doors)]

    def _open(self, address: Address, keys: RunKeys) -> str:
        """A door at `address`, and a TCP socket on another port of the same interface."""
        door = guarded_router(self._context, address.host, address.port, keys, MAX_KNOCK_BYTES)
        family = socket.AF_INET6 if address.is_six else socket.AF_INET
        try:
            listener = socket.create_server((address.host, 0), family=family, backlog=_MOST_STRANGERS)
        except OSError as error:
            raise UserError(f"cannot listen on {address.host}: {error.strerror}") from None
        self._listen(listener, local=False)
        self._doors.append((door, listener.getsockname()[1]))
        port = int(door.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        return str(Address(address.host, port))

    def _open_local(self) -> bytes:
        """A socket without a file, for processes of this host. Its name alone lets nobody in."""
        name = b"\0shoal-bulk-" + secrets.token_hex(16).encode()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(name)
        listener.listen(_MOST_STRANGERS)
        self._listen(listener, local=True)
        return name

    def _listen(self, listener: socket.socket, local: bool) -> None:
        listener.setblocking(False)
        self._listeners.append(keep_from_children(listener))
        self._loop.watch(listener.fileno(), READ, lambda events: self._accept(listener, local))

    # knocks

    def _serve_doors(self) -> None:
        """All that is there: libzmq's descriptors do not say again what they have said."""
        for _ in range(_KNOCKS_A_TURN):
            idle = True
            if _readable(self._gatekeeper.socket):
                self._gatekeeper.answer()
                idle = False
            for door, port in self._doors:
                if _readable(door):
                    self._answer_knock(door, port)
                    idle = False
            if idle:
                return
        self._loop.call(self._serve_doors)

    def _answer_knock(self, door: zmq.Socket[bytes], port: int) -> None:
        with contextlib.suppress(zmq.Again):
            frames = door.recv_multipart(zmq.NOBLOCK)
            answer = self._desk.answer(frames[-1], port, time.monotonic()) if len(frames) == 2 else None
            if answer is not None:
                door.send_multipart([frames[0], answer], zmq.NOBLOCK)

    # fresh sockets

    def _accept(self, listener: socket.socket, local: bool) -> None:
        try:
            sock, peer = listener.accept()
        except OSError:  # gone again, or no descriptor left: others are served meanwhile
            return
        sock.setblocking(False)
        if len(self._strangers) >= _MOST_STRANGERS:
            self._turn_away(next(iter(self._strangers.values())))
        stranger = _Stranger(keep_from_children(sock), local, "this host" if local else str(peer[0]))
        self._strangers[sock.fileno()] = stranger
        self._loop.watch(sock.fileno(), READ, partial(self._hear, stranger))

    def _hear(self, stranger: _Stranger, events: int) -> None:
        try:
            heard = stranger.socket.recv(GREETING_BYTES - len(stranger.greeting))
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        stranger.greeting += heard
        if heard and len(stranger.greeting) < GREETING_BYTES:
            return
        session = self._desk.admit(stranger.greeting, "shm" if stranger.local else "tcp", time.monotonic())
        if session is None:
            self._turn_away(stranger)
            return
        try:
            stranger.socket.send(session.proof("server"))
        except OSError:
            self._turn_away(stranger)
            return
        self._let_go(stranger)
        self._on_enter(stranger.socket, session, stranger.host)

    def _let_go(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.socket.fileno()]
        self._loop.forget(stranger.socket.fileno())

    def _turn_away(self, stranger: _Stranger) -> None:
        self._let_go(stranger)
        stranger.socket.close()


def _descriptor(sock: zmq.Socket[bytes]) -> int:
    return int(sock.getsockopt(zmq.FD))


def _readable(sock: zmq.Socket[bytes]) -> bool:
    return bool(int(sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
