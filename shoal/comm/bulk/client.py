"""The side that asks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np

from shoal.comm.bulk.channel import Channel
from shoal.comm.bulk.driving import Driver
from shoal.comm.bulk.envelope import Kind
from shoal.comm.bulk.errors import BadMessage, RequestFailed, RequestTimeout
from shoal.comm.bulk.knock import Knocking
from shoal.comm.bulk.memory import private_pool
from shoal.comm.bulk.message import Array, ArraySpec, Bytes, Message, frozen
from shoal.comm.bulk.outlet import Outgoing, Traffic
from shoal.comm.bulk.session import Address, Encrypt
from shoal.comm.keys import ClientKeys
from shoal.core.errors import PeerLost, ShoalError

_CONNECT_S = 10.0  # for an attempt without another deadline

Into = Sequence[Array | None]


class _Asked:
    """A request under way. Who waits for it does so by the lock, which is much cheaper than a future."""

    __slots__ = ("done", "error", "future", "into", "message")

    def __init__(self, into: Into | None, future: Future[Message] | None = None) -> None:
        self.into, self.future = into, future
        self.message: Message | None = None
        self.error: ShoalError | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def under_way(self) -> bool:
        return self.done.locked()

    def answer(self, message: Message) -> None:
        self.message = message
        self.done.release()
        if self.future is not None:
            self.future.set_result(message)

    def fail(self, error: ShoalError) -> None:
        # each gets an error of its own: one that is raised in several threads mixes their tracebacks
        self.error = type(error)(str(error)) if isinstance(error, PeerLost) else error
        self.done.release()
        if self.future is not None:
            self.future.set_exception(self.error)


class BulkClient:
    """One connection to one server. All methods may be called from any thread.

    `address`: "ADDRESS:PORT", as the server has it in `addresses`. `name` is what the server calls this client,
    `server_name` what error messages call the server (the address if empty). The constructor waits up to `deadline_s`
    until the connection stands, and raises `PeerLost` if nobody listens there, `EntryRefused` (a `PeerLost` and a
    `UserError`) if the key is not right, and `RequestTimeout`. With None it does not wait, and what is submitted
    meanwhile is sent when the connection stands. `on_lost()` is called in the client's thread when a connection that
    stood is gone. `way`: "shm" or "tcp" to insist, "auto" for shared memory if the server is on this host.
    """

    def __init__(
        self,
        address: str,
        keys: ClientKeys,
        *,
        name: str = "client",
        server_name: str = "",
        deadline_s: float | None = _CONNECT_S,
        encrypt: Encrypt = "auto",
        way: Literal["auto", "shm", "tcp"] = "auto",
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._address, self._keys, self._name = Address.parse(address), keys, name
        self._server = server_name or f"the server at {self._address}"
        self._connect_s = deadline_s or _CONNECT_S
        self._wishes = (name, way, encrypt)
        self._pool = private_pool()
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._traffic = Traffic()
        self._driver = Driver(self._server, self._connect, lambda: bool(self._asked), self._orphans, on_lost)
        attempt = self._driver.attempt()
        if deadline_s is not None:
            try:
                attempt.result()  # it has a deadline of its own
            except BaseException:
                self.close()
                raise

    @property
    def connected(self) -> bool:
        return self._driver.channel is not None

    @property
    def way(self) -> str:
        """How arrays travel: "shm", "tcp, authenticated" or "tcp, encrypted"; "" while not connected."""
        channel = self._driver.channel
        return "" if channel is None else channel.way

    @property
    def bytes_sent(self) -> int:
        """Bytes since the client was made, of heads, arrays and seals; shared memory counts as if it were sent."""
        return self._traffic.sent

    @property
    def bytes_received(self) -> int:
        return self._traffic.received

    def submit(self, message: Message, into: Into | None = None) -> Future[Message]:
        """Send `message`, and return at once. Requests arrive in the order in which they were submitted, answers come
        in any order.

        The arrays of `message` must not change until the future is done, unless it says `freeze=True` (those in a
        `buffer` are given away for good). `into`: where arrays of the answer shall go, each of the right dtype and
        shape and contiguous, or None: the answer's arrays are then these. They are written to before all of it is known
        to be authentic. Arrays of the answer for which there is no place belong to the receiver.

        The future fails with `PeerLost` when the connection is lost, at once if there is none, with `RequestFailed` if
        the server answers with an error, and with `BadMessage` if the answer does not go `into`. Its callbacks run in
        the client's thread, or in one that waits in `request`; they must not wait. Raises `BadMessage` if a limit is
        broken.
        """
        number = next(self._numbers)
        outgoing = self._outgoing(number, message)
        future: Future[Message] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled: the server has it, or will
        self._asked[number] = _Asked(into, future)
        try:
            self._driver.send(outgoing)
        except PeerLost as lost:
            self._fail(number, lost)
        return future

    def request(self, message: Message, deadline_s: float, into: Into | None = None) -> Message:
        """`submit`, and wait for the answer. Raises what the future would, and `RequestTimeout` after `deadline_s`: the
        answer is then dropped, though one that is arriving may still be written `into` its place."""
        begun_s = time.monotonic()
        until_s = begun_s + deadline_s
        number = next(self._numbers)
        outgoing = self._outgoing(number, message)
        asked = self._asked[number] = _Asked(into)
        try:
            self._driver.send_and_drive(outgoing, len(self._asked) == 1, asked.under_way, until_s)
        except PeerLost as lost:
            self._fail(number, lost)
        if not asked.done.acquire(timeout=max(0.0, until_s - time.monotonic())):
            self._asked.pop(number, None)
            raise RequestTimeout(self._server, _what(message.head), time.monotonic() - begun_s)
        if asked.message is None:
            assert asked.error is not None
            raise asked.error
        return asked.message

    def buffer(self, nbytes: int) -> Bytes:
        """Memory for arrays to be sent (aligned to a page): over shared memory they then need no copy.

        Cut it with slices and `.view(dtype)`. Once it is submitted it is given away: take a new one for the next
        message.
        """
        channel = self._driver.channel
        return np.empty(nbytes, np.uint8) if channel is None or nbytes == 0 else channel.buffer(nbytes)

    def reconnect(self) -> Future[None]:
        """Drop the connection, if there is one, and make a new one. Requests under way fail with `PeerLost`, those that
        are submitted from now on wait for it. The future fails with what the constructor raises."""
        return self._driver.attempt()

    def close(self) -> None:
        """End connection and thread; requests under way fail with `PeerLost`. May be called twice, from any thread but
        the client's own."""
        self._driver.close()

    def _outgoing(self, number: int, message: Message) -> Outgoing:
        if message.freeze:
            message = Message(message.head, [frozen(one, self.buffer) for one in message.arrays])
        return Outgoing(Kind.REQUEST, number, message)

    # in the thread that drives, or finds out

    def _connect(self, cancelled: Callable[[], bool]) -> Channel:
        knocking = Knocking(self._address, self._keys, self._server, self._connect_s, cancelled)
        sock, session = knocking.enter(*self._wishes)
        return Channel(sock, session, False, self._traffic, self._pool, self._arrived, self._offer)

    def _offer(
        self, kind: Kind, number: int, head: dict[str, Any], specs: Sequence[ArraySpec]
    ) -> Sequence[Array | None] | None:
        asked = self._asked.get(number)
        return asked.into if asked is not None and kind is Kind.ANSWER else None

    def _arrived(self, kind: Kind, number: int, message: Message) -> None:
        asked = self._asked.pop(number, None)
        if kind is Kind.REQUEST:
            raise BadMessage("a request, where answers are expected")
        if asked is None:
            return  # nobody waits for it any more
        if kind is Kind.FAILURE:
            named, reason = message.head.get("kind"), message.head.get("reason")
            asked.fail(RequestFailed(self._server, str(named), str(reason)))
        elif asked.into is not None and not _went(message.arrays, asked.into):
            asked.fail(_does_not_fit(self._server, message.arrays, asked.into))
        else:
            asked.answer(message)

    def _orphans(self) -> Callable[[PeerLost], None]:
        taken = [self._asked.pop(number, None) for number in list(self._asked)]

        def fail(error: PeerLost) -> None:
            for asked in taken:
                if asked is not None:
                    asked.fail(error)

        return fail

    def _fail(self, number: int, error: ShoalError) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked.fail(error)


def _went(arrays: Sequence[Array], into: Into) -> bool:
    if not arrays:  # a refusal
        return True
    return len(arrays) == len(into) and all(want is None or got is want for got, want in zip(arrays, into, strict=True))


def _does_not_fit(server: str, arrays: Sequence[Array], into: Into) -> BadMessage:
    came = ", ".join(f"{one.dtype}{list(one.shape)}" for one in arrays[:8])
    wanted = ", ".join("any" if one is None else f"{one.dtype}{list(one.shape)}" for one in into[:8])
    return BadMessage(f"{server} answered with arrays ({came}) that do not go into those given ({wanted})")


def _what(head: dict[str, Any]) -> str:
    """What a request was about, for people."""
    named = head.get("op") or head.get("do") or head.get("kind")
    return f"{named!r:.60}" if named is not None else "a request"
