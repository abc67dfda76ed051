"""A post's primary: carries out what clients ask, keeps its followers in step, and answers when they have it.

Everything here runs in the loop's thread and nothing waits: a request that cannot be answered yet is parked, held for
the followers, or queued while the state is being cut for a snapshot.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.comm.bulk import Message, Peer, Reply
from shoal.core.errors import UserError
from shoal.store.feed import Feed, Loop
from shoal.store.parking import Parked, Parking
from shoal.store.replication import Gate
from shoal.store.state import Command, State, pack_reply, unpack_command
from shoal.store.turned_away import Lagging, NotPrimary, WentBack

_LONGEST_WAIT_S = 3600.0
_COMMAND = ("do", "call", "with", "spilled")  # what of a head is the command


@dataclass(frozen=True)
class _Job:
    """A request that is being seen to."""

    command: Command
    head: dict[str, Any]
    arrays: list[Any]
    peer: Peer
    reply: Reply


class Leader:
    """Made when the post is given to this process. `on_broken(error)` is called when the state has been spoilt by an
    updater that raised: this process must not go on then."""

    def __init__(
        self, state: State, position: int, generation: int, lease_s: float, loop: Loop, on_broken: Callable[[Any], None]
    ) -> None:
        self.state, self.generation = state, generation
        self.gate = Gate(position, lease_s, time.monotonic)
        self.fenced = False
        self._loop, self._on_broken = loop, on_broken
        self._feeds: dict[str, Feed] = {}
        self._parking = Parking()
        self._looking = False
        self._queue: deque[_Job] | None = None  # requests that wait while the state is held still

    # ---- followers

    def add(self, name: str, feed: Feed, load: bool) -> None:
        """Send everything to `feed` from now on; with `load`, first what has been. Until `gate.count` nothing waits for
        it."""
        self._feeds[name] = feed
        self.gate.add(name, counts=False)
        if load:
            feed.load(self.state, self.gate.position)

    def drop(self, name: str) -> None:
        """Send nothing more there, and wait for it no more."""
        feed = self._feeds.pop(name, None)
        if feed is not None:
            feed.close()
        self.gate.drop(name)

    def renew(self) -> None:
        """Give a sign of life to the followers, and get one."""
        for feed in self._feeds.values():
            feed.renew(self.gate.position)

    @property
    def followers(self) -> tuple[str, ...]:
        return tuple(self._feeds)

    def farewell(self) -> list[Future[Message]]:
        """Tell the followers that they have everything, and that no more will come."""
        return [told for feed in self._feeds.values() if (told := feed.end()) is not None]

    # ---- requests

    def serve(self, peer: Peer, message: Message, reply: Reply) -> None:
        """See to one request of a client."""
        head = message.head
        if self.fenced:
            raise NotPrimary("another process has taken over")
        asked = head.get("g")
        if asked is not None and asked != self.generation:
            if asked > self.generation:
                raise NotPrimary("this process has not gone back yet")
            raise WentBack(f"generation {self.generation}")
        arrays = list(message.arrays)
        job = _Job(unpack_command(head, arrays), head, arrays, peer, reply)
        if self._queue is not None:
            self._queue.append(job)
        else:
            self._begin(job)

    def _begin(self, job: _Job) -> None:
        wait_s = min(float(job.head.get("wait_s") or 0.0), _LONGEST_WAIT_S)
        if wait_s > 0 and self.state.awaited(job.command):
            until_s = time.monotonic() + wait_s
            self._parking.add(Parked(job.command, until_s, lambda: self._carry_out(job), job.reply.fail))
            self._loop.later(wait_s, self._look)
        else:
            self._carry_out(job)

    def _carry_out(self, job: _Job) -> None:
        if job.peer.gone and not self.state.changes(job.command):
            return
        try:
            answer = self.state.do(job.command)
        except UserError as error:
            job.reply.fail(error)
            return
        except Exception as error:  # an updater of the user's own: the state is spoilt
            job.reply.fail(error)
            self.fence()
            self._on_broken(error)
            return
        changed = self.state.changes(job.command)
        if changed:
            position = self.gate.advance()
            fields: dict[str, Any] = {name: job.head[name] for name in _COMMAND if name in job.head}
            for feed in self._feeds.values():
                feed.send(position, fields, job.arrays)
        self._answer(job, answer)
        if changed:
            self._look()

    def _answer(self, job: _Job, answer: Any) -> None:
        head, arrays = pack_reply(answer)
        if self.gate.open:
            job.reply(Message(head, arrays, freeze=True))
            return
        # these may be views of what the next change overwrites
        copies = [_copied(job.peer, array) for array in arrays]
        over = False

        def give() -> None:
            nonlocal over
            if not over:
                over = True
                job.reply(Message(head, copies))

        def refuse(error: Exception) -> None:
            nonlocal over
            if not over:
                over = True
                job.reply.fail(error)

        self.gate.pass_through(give, refuse)
        patience_s = job.head.get("left_s")
        if patience_s is not None and not self.gate.open:
            self._loop.later(float(patience_s), lambda: refuse(Lagging(", ".join(self.gate.lagging))))

    def _look(self) -> None:
        """See whether somebody need not wait any longer."""
        if not self._looking and not self.fenced and self._queue is None:
            self._looking = True
            try:
                self._parking.look(self.state, time.monotonic())
            finally:
                self._looking = False

    # ---- standing still for a moment

    @property
    def holding(self) -> bool:
        return self._queue is not None

    def hold(self) -> None:
        """Let nothing happen until `go_on`: requests queue up, reads too, since they may follow a change."""
        if self._queue is None:
            self._queue = deque()

    def go_on(self) -> None:
        """Carry out what has queued up."""
        queue, self._queue = self._queue, None
        while queue:
            if self.fenced:
                queue.popleft().reply.fail(NotPrimary("another process has taken over"))
            else:
                self._begin(queue.popleft())
        self._look()

    # ---- the end

    def fence(self) -> None:
        """Answer nothing more: somebody else holds the post, or nobody. Whoever waits is told to ask elsewhere."""
        self.fenced = True
        error = NotPrimary("another process has taken over")
        self.gate.abandon(error)
        self._parking.clear(error)
        if self._queue is not None:
            self.go_on()

    def close(self) -> None:
        """Fence, and let the followers go."""
        self.fence()
        for name in self.followers:
            self.drop(name)


def _copied(peer: Peer, array: Any) -> Any:
    """A copy in memory from which it can be sent without another one."""
    copy = peer.buffer(array.nbytes)[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
