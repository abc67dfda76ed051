"""A client as its server sees it, and the answer to one of its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shoal.comm.bulk.channel import Channel
from shoal.comm.bulk.envelope import Kind
from shoal.comm.bulk.message import Array, ArraySpec, Bytes, Message, frozen
from shoal.comm.bulk.outlet import Outgoing
from shoal.comm.bulk.session import Session, Way
from shoal.core.errors import ShoalError

_LONGEST_REASON = 4000  # characters of an error's text


class Peer:
    """One connected client. Used in the loop's thread only (`gone` and the names: from any)."""

    def __init__(self, number: int, session: Session, host: str) -> None:
        self.name: str = session.name  # what the client calls itself, such as "worker 3"
        self.number = number  # of the connection: never used twice by one server
        self.host = host  # the address it came from
        self.way: Way = session.way
        self.channel: Channel | None = None  # for the server only

    @property
    def gone(self) -> bool:
        """Whether the connection has ended. What is answered afterwards is thrown away."""
        return self.channel is None

    def buffer(self, nbytes: int) -> Bytes:
        """Memory to build an answer in: arrays that lie in it are sent without a copy where that is possible.

        Once they are part of an answer they are the client's: do not write to them again, take a new buffer.
        """
        if self.channel is None:
            return np.empty(nbytes, np.uint8)
        return self.channel.buffer(nbytes)

    def __repr__(self) -> str:
        return f"{self.name} at {self.host}"


class Reply:
    """The answer to one request, to be given once: now or later, in the loop's thread (see `BulkServer.call`)."""

    __slots__ = ("_number", "_peer", "_send")

    def __init__(self, peer: Peer, number: int, send: Callable[[Peer, Outgoing], None]) -> None:
        self._peer, self._number = peer, number
        self._send: Callable[[Peer, Outgoing], None] | None = send

    @property
    def given(self) -> bool:
        return self._send is None

    def __call__(self, message: Message) -> None:
        """Answer. Over TCP the arrays are read while they are sent, after this has returned: they must not change any
        more, or be given with `freeze=True`. Thrown away if the client is gone. Raises `BadMessage` if a limit is
        broken.
        """
        self._give(Kind.ANSWER, message)

    def fail(self, error: BaseException) -> None:
        """Answer with an error: the client's future raises `RequestFailed(kind=type name, reason=text)`."""
        reason = str(error)[:_LONGEST_REASON]
        self._give(Kind.FAILURE, Message({"kind": type(error).__name__, "reason": reason}))

    def _give(self, kind: Kind, message: Message) -> None:
        if self._send is None:
            raise ShoalError("a request was answered twice")
        if message.freeze:
            message = Message(message.head, [frozen(one, self._peer.buffer) for one in message.arrays])
        outgoing = Outgoing(kind, self._number, message)
        send, self._send = self._send, None
        send(self._peer, outgoing)


class Handler(Protocol):
    """Called in the loop's thread with each request, in the order in which each client has sent them.

    May answer now or keep `reply` for later. What it raises becomes `reply.fail`. It must not wait.

    The arrays of `message` belong to the receiver, who may keep and change them: their memory goes back (to a pool, or
    to the client that shares it) when the last view of them is gone.
    """

    def __call__(self, peer: Peer, message: Message, reply: Reply, /) -> None: ...


Place = Callable[[Peer, Mapping[str, Any], Sequence[ArraySpec]], Sequence[Array | None] | None]
