"""One process's copy of one post, and what it is at the moment: primary, backup or spare. Told so by the keeper.

See `shoal.store.succession` for the rules. What is kept here: an assignment is heeded once and in order; a process that
has heard of a term takes nothing from an earlier one; a new primary begins only when the lease that it has given to the
last one has run out, unless that one is known to have ended; and whoever is no longer anything forgets its state.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.comm.bulk import Message, Peer, Reply
from shoal.core.errors import ShoalError
from shoal.store.feed import Feed, Loop, Origin, Reactions
from shoal.store.follower import Follower
from shoal.store.leader import Leader
from shoal.store.snapshot import read_part
from shoal.store.spec import ServerSpec
from shoal.store.state import State
from shoal.store.succession import Assignment, Report
from shoal.store.turned_away import NotPrimary, OldTerm

_RENEWALS_PER_LEASE = 5
_LONGEST_RENEWAL_S = 0.5


class Replica:
    """Begins as a spare without state. For the loop's thread, but for `close`."""

    def __init__(
        self,
        spec: ServerSpec,
        loop: Loop,
        *,
        on_broken: Callable[[BaseException], None] = lambda error: None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.name, self.post = spec.name, spec.post
        self.assignment = Assignment()
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self._keys, self._encrypt, self._lease_s, self._loop = spec.keys.client(), spec.encrypt, spec.lease_s, loop
        self._on_broken, self._log = on_broken, log
        self._serves_from_s = 0.0
        self._caught_up = self._lost = ""
        self._closed = False
        self._beat()

    # ---- what the keeper says

    def hear(self, assignment: Assignment, addresses: Mapping[str, str]) -> Report:
        """Heed an assignment, if it is news; returns how things are here."""
        if assignment.revision > self.assignment.revision:
            before, self.assignment = self.assignment, assignment
            if assignment.role(self.name) == "primary":
                if self.leader is None or assignment.generation != self.leader.generation:
                    try:
                        self._lead(assignment)
                    except Exception as error:  # whoever comes next may be able to
                        self.assignment = before
                        self._on_broken(error)
                        raise
                self._tend(assignment, addresses)
            else:
                self._follow(assignment, was_leader=before.primary == self.name)
        return self.report()

    def report(self) -> Report:
        """How things are here."""
        position = self.leader.gate.position if self.leader else self.follower.position if self.follower else 0
        role = self.assignment.role(self.name)
        return Report(
            self.name, self.assignment.revision, self.assignment.generation, role, position, self._caught_up, self._lost
        )

    @property
    def serving(self) -> bool:
        """Whether clients are answered here."""
        return self.leader is not None and not self.leader.fenced and time.monotonic() >= self._serves_from_s

    def _lead(self, assignment: Assignment) -> None:
        """Become the primary."""
        if self.leader is not None:
            self.leader.close()
        follower, self.follower = self.follower, None
        if follower is not None and follower.generation == assignment.generation and follower.state is not None:
            state, position = follower.state, follower.position
            promised_s = follower.renewed_s + self._lease_s
            self._serves_from_s = 0.0 if assignment.certain else promised_s
        elif assignment.restore is not None:
            # nobody has the state any more: the keeper says what to begin with
            state = read_part(Path(assignment.restore), self.post) if assignment.restore else State()
            position = 0
        else:
            raise ShoalError(f"{self.name} was given server {self.post}, but has no state of it")
        self._log(f"primary of server {self.post} in term {assignment.term} from change {position}")
        self.leader = Leader(state, position, assignment.generation, self._lease_s, self._loop, self._on_broken)

    def _tend(self, assignment: Assignment, addresses: Mapping[str, str]) -> None:
        """As the primary: follow what is said about backup and recruit."""
        leader = self.leader
        assert leader is not None, "nobody leads here"
        wanted = {name for name in (assignment.backup, assignment.recruit) if name}
        for name in set(leader.followers) - wanted:
            leader.drop(name)
        if self._lost not in wanted:
            self._lost = ""
        if self._caught_up not in wanted:
            self._caught_up = ""
        for name in wanted - set(leader.followers):
            leader.add(name, self._feed(leader, name, addresses[name]), load=True)

    def _feed(self, leader: Leader, name: str, address: str) -> Feed:
        def reached(position: int, sent_s: float) -> None:
            if self._caught_up != name and name in leader.followers:
                # from here on everything waits for it, also before the keeper knows: what is safe need not be known
                leader.gate.count(name)
                self._caught_up = name
            leader.gate.acknowledged(name, position, sent_s)

        def lost(error: BaseException) -> None:
            # only the keeper may let us go on without it
            self._log(f"{name} does not follow any more: {error}")
            self._lost = name

        origin = Origin(self.post, self.assignment.term, leader.generation)
        return Feed(
            name, address, self._keys, origin, self._loop, Reactions(reached, lost, leader.fence), encrypt=self._encrypt
        )

    def _follow(self, assignment: Assignment, was_leader: bool) -> None:
        """Become, or stay, something else than the primary."""
        if self.leader is not None:
            self._log(f"not the primary of server {self.post} any more: {assignment.primary} is, in {assignment.term}")
            self.leader.close()
            self.leader = None
        stays = self.name in (assignment.backup, assignment.recruit) and not was_leader
        if not stays or self.follower is None:
            self.follower = Follower(assignment.term, assignment.generation)
        self.follower.term = max(self.follower.term, assignment.term)

    def _beat(self) -> None:
        if self._closed:
            return
        if self.leader is not None and not self.leader.fenced:
            self.leader.renew()
        self._loop.later(min(self._lease_s / _RENEWALS_PER_LEASE, _LONGEST_RENEWAL_S), self._beat)

    # ---- what clients and other copies say

    def serve(self, peer: Peer, message: Message, reply: Reply) -> None:
        """A client's request."""
        if self.leader is None or not self.serving:
            raise NotPrimary(f"{self.name} does not hold server {self.post}")
        self.leader.serve(peer, message, reply)

    def take(self, peer: Peer, message: Message, reply: Reply) -> None:
        """A message from the primary."""
        if self.leader is not None or message.head["t"] < self.assignment.term:
            raise OldTerm(f"this is term {self.assignment.term}")
        if self.follower is None:
            self.follower = Follower(self.assignment.term, self.assignment.generation)
        self.follower.take(peer, message, reply)

    def who(self) -> dict[str, Any]:
        """What a client needs to know to decide whom to ask."""
        assignment = self.assignment
        told = {"serving": self.serving, "term": assignment.term, "generation": assignment.generation}
        return {**told, "role": assignment.role(self.name), "backup": assignment.backup}

    def close(self) -> None:
        """When the loop has ended."""
        self._closed = True
        if self.leader is not None:
            with contextlib.suppress(Exception):  # replies cannot be given any more
                self.leader.close()
