"""A server of the store: one copy of one post behind a port.

    who     -> whether it serves, in which term and generation, and the fleet's description
    ask     -> what a client wants done: a command (`shoal.store.state`)
    beat    -> the keeper's assignment; answered with a report
    load, copy, renew, end -> the feed of a primary to its follower
    hold, cut, go on -> a snapshot, step by step, led by the keeper
    snapshot -> a client wants one

All of it runs in one thread and nothing there waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.comm.bulk import BulkServer, Message, Peer, Reply
from shoal.core.errors import UserError
from shoal.store.forked import Forked
from shoal.store.heads import FEED, check_head
from shoal.store.leader import Leader
from shoal.store.packing import PackingError
from shoal.store.replica import Replica
from shoal.store.snapshot import write_part
from shoal.store.spec import ServerSpec
from shoal.store.succession import Assignment
from shoal.store.turned_away import NotPrimary, TurnedAway


class StoreServer:
    """Listens as soon as it is made. With ``threaded=False``, `run` is its loop; else it has a thread of its own.

    `on_broken(error)`: the state is spoilt and this process must end.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        threaded: bool = False,
        on_broken: Callable[[BaseException], None] = lambda error: None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.name, self.post = spec.name, spec.post
        self._log = log
        self._fleet: dict[str, Any] = {}
        self._writing: dict[int, Forked] = {}
        self._written: dict[int, bool] = {}
        self._holds = 0
        self._askers: dict[int, Reply] = {}  # clients that have asked for a snapshot
        self._wanted = 0  # how many have
        self.bulk = BulkServer(spec.listen, spec.keys, self._handle, encrypt=spec.encrypt, threaded=threaded)
        self.replica = Replica(spec, self.bulk, on_broken=on_broken, log=log)

    @property
    def address(self) -> str:
        return self.bulk.addresses[0]

    def run(self) -> None:
        """Serve until `stop`."""
        self.bulk.run()

    def stop(self) -> None:
        """Have `run` return. From any thread."""
        self.bulk.stop()

    def close(self) -> None:
        """End everything; nothing is left."""
        for child in self._writing.values():
            child.kill()
        self.bulk.close()
        self.replica.close()

    def _handle(self, peer: Peer, message: Message, reply: Reply) -> None:
        try:
            self._dispatch(peer, message, reply)
        except TurnedAway as no:
            reply.fail(no)

    def _dispatch(self, peer: Peer, message: Message, reply: Reply) -> None:
        kind = check_head(message.head)
        if kind == "ask":
            self.replica.serve(peer, message, reply)
        elif kind in FEED:
            self.replica.take(peer, message, reply)
        elif kind == "who":
            reply(Message({**self.replica.who(), "name": self.name, "pid": os.getpid(), "fleet": self._fleet}))
        elif kind == "beat":
            reply(Message(self._beat(message.head)))
        elif kind in ("hold", "cut", "go on"):
            reply(Message(self._snapshot(kind, message.head)))
        elif kind == "snapshot":
            self._leader()
            self._wanted += 1
            self._askers[self._wanted] = reply
        else:
            raise PackingError(f"a server of the store knows no {kind!r}")

    def _beat(self, head: dict[str, Any]) -> dict[str, Any]:
        assignment, addresses = Assignment.from_plain(head["assignment"]), head["addresses"]
        if not {assignment.backup, assignment.recruit} <= {"", *addresses}:
            raise PackingError("an assignment names a process without an address")
        self._fleet = head["fleet"]
        report = self.replica.hear(assignment, addresses)
        for number, child in list(self._writing.items()):
            done = child.poll()
            if done is not None:
                del self._writing[number]
                self._written[number] = done
        self._tell_askers(int(head.get("served", 0)), str(head.get("outcome", "")))
        return {
            "report": report.to_plain(),
            "written": {str(number): done for number, done in self._written.items()},
            "wanted": self._wanted,
        }

    # ---- snapshots

    def _leader(self) -> Leader:
        leader = self.replica.leader
        if leader is None or not self.replica.serving:
            raise NotPrimary(f"{self.name} does not hold server {self.post}")
        return leader

    def _snapshot(self, step: str, head: dict[str, Any]) -> dict[str, Any]:
        leader = self._leader()
        if step == "hold":
            leader.hold()
            self._holds += 1
            ticket = self._holds
            # a keeper that is gone must not hold us up
            self.bulk.later(float(head["seconds"]), lambda: self._let_go(leader, ticket))
            return {"ticket": ticket}
        if step == "go on":
            self._let_go(leader, int(head["ticket"]))
            return {}
        held: int | None = head.get("ticket")
        if held is not None and (held != self._holds or not leader.holding):
            raise TurnedAway("the hold has ended: this would be no cut")
        number, directory, post = int(head["number"]), Path(head["directory"]), self.post
        began_s = time.monotonic()
        self._written.clear()
        self._writing[number] = Forked(lambda: write_part(leader.state, directory, post))
        if held is not None:
            self._let_go(leader, held)
        return {"fork_s": time.monotonic() - began_s}

    def _let_go(self, leader: Leader, ticket: int) -> None:
        if leader.holding and ticket == self._holds:
            leader.go_on()

    def _tell_askers(self, served: int, outcome: str) -> None:
        """The keeper has seen to the first `served` wishes; `outcome` is the snapshot, or what stood in its way."""
        for number in [number for number in self._askers if number <= served]:
            reply = self._askers.pop(number)
            if outcome.startswith("!"):
                reply.fail(UserError(outcome[1:]))
            else:
                reply(Message({"snapshot": outcome}))
