"""A client's link to one server, whoever holds it: nothing asked for is lost, nothing is done twice.

Requests are numbered, sent in order, and kept until they are answered. When the process that held the post is gone,
frozen, or says that it does not hold it any more, the link looks for the one that does and sends everything that is
not answered again, in the same order under the same numbers. The server knows the numbers it has carried out.

A link changes over only to a process that says of itself that it serves: silence alone decides nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

import numpy.typing as npt

from shoal.comm.bulk import BulkClient, Message, RequestFailed
from shoal.core.errors import ConfigError, PeerLost, ShoalError, UserError
from shoal.store.errors import ServerTimeout
from shoal.store.operations import Change
from shoal.store.pending import Pending, Pendings
from shoal.store.session import Session
from shoal.store.state import Command, pack_command
from shoal.store.turned_away import Lagging

Array = npt.NDArray[Any]

_PROBE_S = 0.3  # unanswered for so long, the other process is asked whether it has taken over
_PROBE_LASTS_S = 1.0  # a question that is not answered in this time is asked anew, over a new connection
_DESCRIBE_S = 2.0  # searching in vain for so long, ask where the fleet is now
_KNOW_BEFORE = 0.9  # of the time that is left
_GRACE_S = 5.0  # what waits at the server for others is answered there when its time is up


class Link:
    """To one server. `submit` may be called from any thread, the rest by the session.

    `name` is for messages. With ``lasting=False`` it is there already and nobody could take over: once a connection is
    lost or refused, everything fails with `PeerLost`."""

    def __init__(
        self, session: Session, server: int, addresses: Sequence[str], name: str = "", lasting: bool = True
    ) -> None:
        self.server, self._name, self._lasting = server, name or f"server {server}", lasting
        self._lost: PeerLost | None = None
        self._session = session
        self._lock = threading.RLock()
        self._addresses = list(addresses)
        self._clients: dict[str, BulkClient] = {}
        self._discarded: list[BulkClient] = []
        self._sent_before = self._received_before = 0  # over connections that are no more
        self._probes: dict[str, float] = {}  # address -> since when a question is under way
        self._current: str | None = None
        self._term = -1
        self._attempt = 0
        self._pending = Pendings()
        self._sequences: dict[str, int] = {}  # by stream
        self._searching_since_s: float | None = time.monotonic()
        self._trouble = ""
        self._closed = False
        session.watch(self)

    def __str__(self) -> str:
        return f"{self._name} ({', '.join(self._addresses)})"

    @property
    def bytes_sent(self) -> int:
        return self._sent_before + sum(client.bytes_sent for client in list(self._clients.values()))

    @property
    def bytes_received(self) -> int:
        return self._received_before + sum(client.bytes_received for client in list(self._clients.values()))

    def submit(
        self,
        make: Command | Callable[[str, int], Command],
        what: str,
        deadline_s: float,
        *,
        into: Sequence[Array | None] | None = None,
        waits: bool = False,
        stream: str = "",
        extra: dict[str, Any] | None = None,
    ) -> Future[Message]:
        """Send a command; for a change, `make(client, sequence)` makes it under the next number of its `stream`.

        With `waits` the server may keep it for up to `deadline_s` until it can be carried out; such ones need a stream
        of their own. The future fails with `ServerTimeout` and with what the server says. Raises `StateLost` if the
        servers have gone back while nothing was under way.
        """
        now_s = time.monotonic()
        with self._session.telling, self._lock:
            self._session.raise_untold()
            if self._closed:
                raise ShoalError("this store has been closed")
            if self._lost is not None:
                raise self._lost
            if callable(make):
                self._sequences[stream] = sequence = self._sequences.get(stream, 0) + 1
                make = make(self._session.client + stream, sequence)
            fields, arrays = pack_command(make)
            pending = Pending(
                Message({"k": "ask", **fields, **(extra or {})}, arrays), Future(), into, what, now_s,
                now_s + deadline_s + (_GRACE_S if waits else 0.0), now_s + deadline_s if waits else None,
                isinstance(make, Change),
            )  # fmt: skip
            self._pending.add(pending)
            self._send_due()
        return pending.future

    def ask(self, kind: str, what: str, deadline_s: float) -> Future[Message]:
        """Ask for something that is no command and may be done twice."""
        now_s = time.monotonic()
        pending = Pending(
            Message({"k": kind, "p": self.server}), Future(), None, what, now_s, now_s + deadline_s, None, False
        )
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._pending.add(pending)
            self._send_due()
        return pending.future

    # ---- sending and hearing

    def _send_due(self) -> None:
        """Send what has not been sent, in order, as far as the server can remember its answers."""
        client = self._clients.get(self._current) if self._current is not None else None
        if client is None:
            return
        now_s = time.monotonic()
        for ticket, pending in self._pending.due(self._attempt, now_s):
            pending.message.head["g"] = self._session.generation
            if pending.waits_until_s is not None:
                pending.message.head["wait_s"] = max(0.001, pending.waits_until_s - now_s)
            if not self._lasting:  # nobody sees to it that a copy which lags behind is left out: let us know who it is
                pending.message.head["left_s"] = _KNOW_BEFORE * max(0.0, pending.until_s - now_s)
            future = client.submit(pending.message, pending.into)
            future.add_done_callback(partial(self._answered, ticket, self._attempt))

    def _answered(self, ticket: int, attempt: int, done: Future[Message]) -> None:
        """In the connection's thread."""
        error = done.exception()
        if error is not None:
            self._session.post(partial(self._failed, ticket, attempt, error))
        elif (pending := self._take(ticket, attempt)) is not None:
            with suppress(InvalidStateError):
                pending.future.set_result(done.result())

    def _take(self, ticket: int, attempt: int) -> Pending | None:
        """The request that this answers, if it is still waited for."""
        with self._lock:
            pending = self._pending.take(ticket, attempt)
            if pending is not None:
                self._send_due()
            return pending

    def _failed(self, ticket: int, attempt: int, error: BaseException) -> None:
        """In the session's thread."""
        moved = isinstance(error, RequestFailed) and error.kind in ("NotPrimary", "WentBack")
        if isinstance(error, PeerLost) and not self._lasting:
            self._end(error)
        elif moved or isinstance(error, PeerLost):
            with self._lock:
                if ticket in self._pending and attempt == self._attempt:
                    self._trouble = str(error)
                    self._lose(drop=not moved)
            self._bury()
        elif (pending := self._take(ticket, attempt)) is not None:
            with suppress(InvalidStateError):
                pending.future.set_exception(_translated(error, pending))

    def _lose(self, drop: bool) -> None:
        """Nobody is known to hold the post: look for somebody. With the lock held, in the session's thread."""
        if self._current is not None and drop:
            self._discard(self._current)
        self._current = None
        self._attempt += 1
        self._pending.send_again()
        if self._searching_since_s is None:
            self._searching_since_s = time.monotonic()

    def _discard(self, address: str) -> None:
        """Give a connection up; `_bury` closes it, without the lock, which the connection's own thread may want."""
        self._probes.pop(address, None)
        client = self._clients.pop(address, None)
        if client is not None:
            self._discarded.append(client)

    def _bury(self) -> None:
        while self._discarded:
            client = self._discarded.pop()
            client.close()
            self._sent_before += client.bytes_sent
            self._received_before += client.bytes_received

    # ---- looking after it: all in the session's thread

    def look(self, now_s: float) -> bool:
        """End what has lasted too long; see whether somebody else has taken over."""
        with self._lock:
            late = self._pending.take_late(now_s)
            waiting_s = self._pending.waiting_since_s()
            searching = self._searching_since_s is not None and self._lost is None
            doubtful = waiting_s is not None and now_s - waiting_s > _PROBE_S
            self._send_due()
        for pending in late:
            with suppress(InvalidStateError):
                pending.future.set_exception(
                    ServerTimeout(pending.what, str(self), now_s - pending.began_s, self._trouble)
                )
        if searching or doubtful:
            self._probe(now_s)
        return searching

    def _probe(self, now_s: float) -> None:
        since_s = self._searching_since_s
        if since_s is not None and now_s - since_s > _DESCRIBE_S:
            self._searching_since_s = now_s
            with suppress(ShoalError, OSError):
                self._addresses = list(self._session.describe().servers[self.server])
        for address in self._addresses:
            asked_s = self._probes.get(address)
            if asked_s is not None and (now_s - asked_s < _PROBE_LASTS_S or address == self._current):
                continue
            with self._lock:
                if asked_s is not None:
                    self._discard(address)
                client = self._clients.get(address)
                if client is None:
                    client = self._clients[address] = BulkClient(
                        address, self._session.keys, name=self._session.name, server_name=str(self), deadline_s=None,
                        encrypt=self._session.encrypt,
                    )  # fmt: skip
            self._bury()
            self._probes[address] = now_s
            future = client.submit(Message({"k": "who", "p": self.server}))
            future.add_done_callback(partial(self._told, address, client))

    def _told(self, address: str, client: BulkClient, done: Future[Message]) -> None:
        """In the connection's thread."""
        self._session.post(partial(self._heard, address, client, done))

    def _heard(self, address: str, client: BulkClient, done: Future[Message]) -> None:
        with self._lock:
            if self._clients.get(address) is not client:
                return
            self._probes.pop(address, None)
            error = done.exception()
            if error is not None:
                self._trouble = str(error)
                if address == self._current:
                    self._lose(drop=True)
                else:
                    self._discard(address)
        self._bury()
        if isinstance(error, UserError):  # a wrong key does not get better by waiting
            self.fail_all(error)
        elif isinstance(error, PeerLost) and not self._lasting:
            self._end(error)  # it was there when its address was told, and may have died before we came
        if error is not None:
            return
        head, self._trouble = done.result().head, ""
        if head["serving"] and self._session.learn(head["generation"]):
            with self._lock:
                news = head["term"] > self._term or (self._current is None and head["term"] == self._term)
                if not news:
                    return
                if self._current is not None:
                    self._lose(drop=self._current != address)
            self._bury()  # before anything is sent anew: two answers must not go into one array
            with self._lock:
                self._current, self._term = address, head["term"]
                self._searching_since_s, self._trouble = None, ""
                self._send_due()

    def _end(self, error: PeerLost) -> None:
        """Nobody will ever hold the post again."""
        self._lost = PeerLost(f"{self} is gone: {error}")
        self.fail_all(self._lost)

    def fail_all(self, error: Exception) -> int:
        with self._lock:
            pending = self._pending.take_all()
        for one in pending:
            with suppress(InvalidStateError):
                one.future.set_exception(error)
        return len(pending)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            clients, self._clients = self._clients, {}
        self._bury()
        for client in clients.values():
            client.close()
        self.fail_all(ShoalError("this store has been closed"))


def _translated(error: BaseException, pending: Pending) -> BaseException:
    """What a server has said, as what it was."""
    if isinstance(error, RequestFailed) and error.kind == Lagging.__name__:
        return ServerTimeout(pending.what, error.reason, time.monotonic() - pending.began_s)
    if isinstance(error, RequestFailed) and error.kind in ("UserError", "ConfigError"):
        return (ConfigError if error.kind == "ConfigError" else UserError)(error.reason)
    if isinstance(error, RequestFailed) and error.kind == "OutOfStep":
        return PeerLost(error.reason)
    return error
