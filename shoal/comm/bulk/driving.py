"""Who moves the bytes of a client's connection: its own thread, or a caller that waits for an answer anyway.

A caller that waits does the work itself: the switch to another thread and back would cost as much as sending a
megabyte. While callers do so one after the other, the client's thread keeps out of the way; it takes over for requests
that nobody waits for, and to see the end of a connection that nobody uses.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal

from shoal.comm.bulk.channel import Channel
from shoal.comm.bulk.errors import Ended
from shoal.comm.bulk.outlet import Outgoing
from shoal.core.errors import PeerLost, ShoalError

_LOG = logging.getLogger(__name__)
_BEAT_S = 0.2  # how often memory is looked after, and how long the thread keeps out of the way
_YIELD_S = 0.05  # how long a caller waits for the thread to make way
_LOOK_S = 150e-6  # how long a caller looks for its answer before it sleeps: to be woken takes a third of that

State = Literal["connecting", "open", "lost", "closed"]


class Driver:
    """A connection that is made, kept moving and made again. All methods may be called from any thread.

    `connect(cancelled)` makes one and may wait, in the driver's thread. `busy()` says whether an answer is outstanding.
    When the connection has ended or cannot be made, `orphans()` takes off what is outstanding, at that moment, and
    returns what is then called with the error, in the thread that finds out; `on_lost()` is called after that, in the
    driver's thread, if the connection had stood.
    """

    def __init__(
        self,
        server: str,
        connect: Callable[[Callable[[], bool]], Channel],
        busy: Callable[[], bool],
        orphans: Callable[[], Callable[[PeerLost], None]],
        on_lost: Callable[[], None],
    ) -> None:
        self._server, self._connect, self._busy = server, connect, busy
        self._orphans, self._on_lost = orphans, on_lost
        self._turn = threading.Condition()
        self.state: State = "lost"
        self._error = PeerLost(f"there is no connection to {server}")
        self._channel: Channel | None = None
        self._outbox: deque[Outgoing] = deque()
        self._attempt: Future[None] = Future()
        self._role: Literal["nobody", "thread", "caller"] = "nobody"
        self._wish = False  # a caller would like to drive
        self._drives = 0  # by callers, so far
        self._tell_lost = False
        self._beat_at_s = 0.0
        self._kick = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._thread = threading.Thread(target=self._run, name="shoal-bulk-client", daemon=True)
        self._thread.start()

    @property
    def channel(self) -> Channel | None:
        """The connection, if it stands."""
        return self._channel if self.state == "open" else None

    def attempt(self) -> Future[None]:
        """Make a connection, in place of the one there is. If one is being made, that is it."""
        with self._turn:
            if self.state == "connecting":
                return self._attempt
            attempt: Future[None] = Future()
            attempt.set_running_or_notify_cancel()
            if self.state == "closed":
                attempt.set_exception(self._error)
                return attempt
            self.state, self._attempt = "connecting", attempt
            tell = self._orphans()
            self._outbox.clear()
            self._nudge()
        tell(PeerLost(f"the connection to {self._server} is being made anew"))
        return attempt

    def send(self, outgoing: Outgoing) -> None:
        """Have it sent. Raises `PeerLost` if there is no connection, and none is being made."""
        with self._turn:
            self._put(outgoing)
            self._nudge()

    def send_and_drive(self, outgoing: Outgoing, alone: bool, under_way: Callable[[], bool], until_s: float) -> None:
        """Have it sent and, if nobody else does it, move bytes while it is `under_way`; else return at once.

        `alone`: nothing else is under way, so that the thread has nothing to do but to make way."""
        with self._turn:
            self._put(outgoing)
            if self._role == "thread" and alone and self.state == "open":
                self._wish = True
                self._nudge()
                self._turn.wait_for(lambda: self._role != "thread", _YIELD_S)
                self._wish = False
            if self._role != "nobody" or self.state != "open":
                self._nudge()
                return
            self._role = "caller"
            self._drives += 1
        try:
            self._drive(lambda: under_way() and self.state == "open" and time.monotonic() < until_s, until_s)
        finally:
            with self._turn:
                self._role = "nobody"
                if self._outbox or self._busy() or self.state != "open":
                    self._turn.notify_all()

    def close(self) -> None:
        """End the connection and the thread. From any thread but the driver's own; may be called twice."""
        with self._turn:
            if self.state == "closed":
                return
            self.state = "closed"
            self._error = PeerLost(f"the connection to {self._server} was closed on this side")
            self._nudge()
        self._thread.join()
        with self._turn:
            self._turn.wait_for(lambda: self._role == "nobody")  # a caller that drives sees the state and leaves
        self._drop()
        os.close(self._kick)
        if not self._attempt.done():  # the thread has seen the end before the beginning
            self._attempt.set_exception(self._error)
        self._orphans()(self._error)

    # with the lock held

    def _put(self, outgoing: Outgoing) -> None:
        if self.state not in ("open", "connecting"):
            raise self._error
        self._outbox.append(outgoing)

    def _nudge(self) -> None:
        """Have whoever drives look up; if nobody does, the thread will."""
        if self._role != "nobody":
            os.eventfd_write(self._kick, 1)
        self._turn.notify_all()

    def _called_for(self) -> bool:
        if self.state == "closed" or self._tell_lost:
            return True
        if self._role != "nobody" or self._wish:
            return False
        if self.state == "connecting":
            return True
        half_sent = self._channel is not None and self._channel.blocked
        return self.state == "open" and (half_sent or bool(self._outbox) or self._busy())

    # in the driver's thread

    def _run(self) -> None:
        seen_drives = 0
        while True:
            with self._turn:
                called = self._turn.wait_for(self._called_for, _BEAT_S)
                if self.state == "closed":
                    return
                tell, self._tell_lost = self._tell_lost, False
                free = self._role == "nobody" and not self._wish
                connect = free and self.state == "connecting"
                # without work, watch the connection; unless callers have used it lately and may do so again
                drive = free and self.state == "open" and (called or seen_drives == self._drives)
                seen_drives = self._drives
                if drive:
                    self._role = "thread"
            if tell:
                self._on_lost()
            if connect:
                self._make()
            if drive:
                try:
                    self._drive(lambda: self.state == "open" and not self._wish, float("inf"))
                finally:
                    with self._turn:
                        self._role = "nobody"
                        self._turn.notify_all()

    def _make(self) -> None:
        self._drop()
        try:
            channel = self._connect(lambda: self.state == "closed")
        except ShoalError as error:
            self._fail(error)
            return
        with self._turn:
            self._channel = channel
            self._poll = select.poll()
            self._poll.register(self._kick, select.POLLIN)
            self._poll.register(channel.fileno(), select.POLLIN)
            channel.watched = select.POLLIN
            if self.state == "connecting":  # not closed meanwhile
                self.state = "open"
            attempt = self._attempt
        if self.state == "open":
            attempt.set_result(None)
        else:
            attempt.set_exception(self._error)

    def _fail(self, error: ShoalError) -> None:
        """The connection could not be made."""
        lost = error if isinstance(error, PeerLost) else PeerLost(str(error))
        with self._turn:
            attempt = self._attempt
            if self.state != "closed":
                self.state, self._error = "lost", lost
            tell = self._orphans()
            self._outbox.clear()
        tell(lost)
        attempt.set_exception(error)

    # in the thread that drives

    def _drive(self, go_on: Callable[[], bool], until_s: float) -> None:
        channel = self._channel
        assert channel is not None
        try:
            while go_on():
                if self._outbox:
                    with contextlib.suppress(IndexError):  # another may have cleared it
                        while True:
                            channel.put(self._outbox.popleft())
                    channel.flush()
                elif channel.blocked:
                    channel.flush()
                self._wait(channel, until_s)
        except Ended as end:
            self._lose(PeerLost(f"the connection to {self._server} is lost: {end}"))
        except Exception as error:
            _LOG.exception("the connection to %s cannot go on", self._server)
            self._lose(PeerLost(f"the connection to {self._server} cannot go on: {error!r}"))

    def _wait(self, channel: Channel, until_s: float) -> None:
        wanted = select.POLLIN | (select.POLLOUT if channel.blocked else 0)
        if wanted != channel.watched:
            self._poll.modify(channel.fileno(), wanted)
            channel.watched = wanted
        now_s = time.monotonic()
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + _BEAT_S
            channel.tick(now_s)
        patience_ms = 1000 * (min(self._beat_at_s, until_s) - now_s)
        for descriptor, events in self._look() or self._poll.poll(max(0, patience_ms)):
            if descriptor == self._kick:
                os.eventfd_read(self._kick)
            elif events & ~select.POLLOUT:  # readable, or over
                channel.fill()

    def _look(self) -> list[tuple[int, int]]:
        """What a caller sees within a moment, in which others have the core if they want it."""
        found = self._poll.poll(0)
        if self._role == "caller":
            until_s = time.monotonic() + _LOOK_S
            while not found and time.monotonic() < until_s:
                os.sched_yield()
                found = self._poll.poll(0)
        return found

    def _lose(self, error: PeerLost) -> None:
        """The connection that stood is over."""
        with self._turn:
            if self.state != "open":
                return  # closed, or being made anew: who did that has said so
            self.state, self._error = "lost", error
            self._tell_lost = True
            tell = self._orphans()
            self._outbox.clear()
            self._drop()
            self._turn.notify_all()
        tell(error)

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
