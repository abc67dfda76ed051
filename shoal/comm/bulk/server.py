"""The side that is asked."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shoal.comm.bulk.channel import Channel
from shoal.comm.bulk.door import Entrance
from shoal.comm.bulk.envelope import Kind
from shoal.comm.bulk.errors import BadMessage, Ended
from shoal.comm.bulk.loop import READ, WRITE, Loop, Timer
from shoal.comm.bulk.memory import private_pool
from shoal.comm.bulk.message import Array, ArraySpec, Message
from shoal.comm.bulk.outlet import Outgoing, Traffic
from shoal.comm.bulk.peer import Handler, Peer, Place, Reply
from shoal.comm.bulk.session import Address, Encrypt, Session
from shoal.comm.keys import RunKeys
from shoal.core.errors import ShoalError

_LOG = logging.getLogger(__name__)
_TICK_S = 0.1


class BulkServer:
    """Listens as soon as it is made, and serves in one thread: the loop's thread.

    `listen`: where, as "ADDRESS:PORT" (port 0: any); several for several interfaces. `keys`: of the run.
    `handler` answers. `on_gone(peer)` is called in the loop's thread when the connection of a client has ended.
    `place(peer, head, specs)` may offer arrays for what is about to arrive
    (None: none offered); what it offers is overwritten before it is known to be authentic: never offer live state.
    `threaded`: have a thread of its own; else the caller's thread is the loop's, while it is in `run`.
    Raises `UserError` if it cannot listen there.
    """

    def __init__(
        self,
        listen: str | Sequence[str],
        keys: RunKeys,
        handler: Handler,
        *,
        on_gone: Callable[[Peer], None] = lambda peer: None,
        place: Place | None = None,
        encrypt: Encrypt = "auto",
        threaded: bool = True,
    ) -> None:
        self._handler, self._on_gone, self._place = handler, on_gone, place
        self._peers: dict[Peer, Channel] = {}
        self._numbers = itertools.count()
        self._pool = private_pool()
        self._traffic = Traffic()
        self._loop = Loop()
        try:
            where = [Address.parse(one) for one in ([listen] if isinstance(listen, str) else listen)]
            self._entrance = Entrance(self._loop, where, keys, encrypt, self._enter)
        except BaseException:
            self._loop.close()
            raise
        self.addresses: tuple[str, ...] = self._entrance.addresses  # what a `BulkClient` is given
        self._loop.later(_TICK_S, self._tick)
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._loop.run, name="shoal-bulk-server", daemon=True)
            self._thread.start()

    @property
    def bytes_sent(self) -> int:
        """Bytes since the server was made, to all clients; shared memory counts as if it were sent."""
        return self._traffic.sent

    @property
    def bytes_received(self) -> int:
        return self._traffic.received

    def call(self, function: Callable[[], None]) -> None:
        """Have `function` called in the loop's thread, soon. From any thread, and from signal handlers."""
        self._loop.call(function)

    def later(self, seconds: float, function: Callable[[], None]) -> Timer:
        """Have `function` called in the loop's thread after `seconds`. From any thread."""
        return self._loop.later(seconds, function)

    def run(self) -> None:
        """Serve in this thread until `stop`. For servers without a thread of their own."""
        assert self._thread is None
        self._loop.run()

    def stop(self) -> None:
        """Have `run` return soon. From any thread, and from signal handlers."""
        self._loop.stop()

    def close(self) -> None:
        """End all connections and the thread; nothing is left. From any thread but the loop's; without a thread, from
        the one that was in `run`. May be called twice."""
        self._loop.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for peer, channel in self._peers.items():
            peer.channel = None
            self._loop.forget(channel.fileno())
            channel.close()
        self._peers.clear()
        self._entrance.close()
        self._loop.close()

    # in the loop's thread

    def _enter(self, sock: socket.socket, session: Session, host: str) -> None:
        peer = Peer(next(self._numbers), session, host)
        arrived, offer = partial(self._arrived, peer), partial(self._offer, peer)
        channel = Channel(sock, session, True, self._traffic, self._pool, arrived, offer)
        peer.channel = self._peers[peer] = channel
        channel.watched = READ
        self._loop.watch(channel.fileno(), READ, partial(self._ready, peer, channel))

    def _ready(self, peer: Peer, channel: Channel, events: int) -> None:
        try:
            if events & ~WRITE:  # readable, or over
                channel.fill()
            if channel.blocked:
                channel.flush()
        except Ended as end:
            self._lose(peer, str(end))
        except Exception as error:
            _LOG.exception("the connection of %s cannot go on", peer)
            self._lose(peer, repr(error))
        else:
            self._look(channel)

    def _look(self, channel: Channel) -> None:
        """Watch for what matters now: room to write if there is something, and requests unless too much is unread."""
        wanted = (0 if channel.full else READ) | (WRITE if channel.blocked else 0)
        if not channel.closed and wanted != channel.watched:
            self._loop.change(channel.fileno(), wanted)
            channel.watched = wanted

    def _offer(
        self, peer: Peer, kind: Kind, number: int, head: dict[str, Any], specs: Sequence[ArraySpec]
    ) -> Sequence[Array | None] | None:
        return None if self._place is None else self._place(peer, head, specs)

    def _arrived(self, peer: Peer, kind: Kind, number: int, message: Message) -> None:
        if kind is not Kind.REQUEST:
            raise BadMessage("an answer, where nothing was asked")
        reply = Reply(peer, number, self._send)
        try:
            self._handler(peer, message, reply)
        except Exception as error:
            if not isinstance(error, ShoalError):
                _LOG.exception("a request of %s failed", peer)
            if not reply.given:
                reply.fail(error)

    def _send(self, peer: Peer, outgoing: Outgoing) -> None:
        channel = self._peers.get(peer)
        if channel is None:
            return
        waiting = channel.blocked
        channel.put(outgoing)
        if not waiting:
            try:
                channel.flush()
            except Ended as end:
                # the handler, and what reads its requests, may be in the middle of something
                self._loop.call(partial(self._lose, peer, str(end)))
            else:
                self._look(channel)

    def _lose(self, peer: Peer, reason: str) -> None:
        channel = self._peers.pop(peer, None)
        if channel is None:
            return
        _LOG.debug("%s is gone: %s", peer, reason)
        peer.channel = None
        self._loop.forget(channel.fileno())
        channel.close()
        self._on_gone(peer)

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._loop.later(_TICK_S, self._tick)
        self._entrance.tick(now_s)
        self._pool.trim(now_s)
        for peer, channel in list(self._peers.items()):
            try:
                channel.tick(now_s)
            except Ended as end:
                self._lose(peer, str(end))
