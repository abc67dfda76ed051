"""A follower's copy of a post: takes the primary's changes in their order, and nothing from an earlier primary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from shoal.comm.bulk import Message, Peer, Reply
from shoal.store.feed import Assembly
from shoal.store.packing import PackingError
from shoal.store.state import Command, State, unpack_command
from shoal.store.turned_away import OldTerm, OutOfStep, WentBack


class Follower:
    """Empty, until it is loaded or told that it begins at the beginning. For the loop's thread."""

    def __init__(self, term: int, generation: int, fresh: bool = False) -> None:
        self.term, self.generation = term, generation
        self.state: State | None = State() if fresh else None
        self.position = 0 if fresh else -1
        self.renewed_s = float("-inf")  # when the primary was last told that it is one
        self.ended = False  # the primary has said that no more will come
        self._feeder: Peer | None = None
        self._assembly = Assembly()

    @property
    def fed(self) -> bool:
        """Whether a primary has ever sent anything."""
        return self._feeder is not None

    @property
    def in_step(self) -> bool:
        """Whether the primary is still sending, or has said that this is all."""
        return self.state is not None and (self.ended or (self._feeder is not None and not self._feeder.gone))

    def take(self, peer: Peer, message: Message, reply: Reply) -> None:
        """One message of the primary's feed. Raises `OldTerm` if it is not the primary any more, and `PackingError` if
        it cannot be read, which changes nothing."""
        head, kind = message.head, message.head["k"]
        if head["t"] < self.term:
            raise OldTerm(f"term {head['t']} is over: this is {self.term}")
        if head["g"] < self.generation:
            raise WentBack(f"generation {self.generation}")
        assembly = self._assembled(message) if kind == "load" else self._assembly
        command = unpack_command(head, list(message.arrays)) if kind == "copy" else None
        self.term = head["t"]
        self._feeder = peer
        if kind == "load":
            self._load(head, assembly)
        elif command is not None:
            self._copy(head, command)
        elif kind == "end":
            self.ended = True
        elif self.state is None or head["n"] != self.position:
            raise OutOfStep(f"change {head['n']} should have come, {self.position} did")
        self.renewed_s = time.monotonic()
        reply(Message({}))

    def _assembled(self, message: Message) -> Assembly:
        """What has come of a state, with this piece of it."""
        assembly = Assembly() if message.head["piece"] == 0 else self._assembly
        try:
            assembly.take(message.head, message.arrays)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise PackingError(f"this is no piece of a state: {error}") from error
        return assembly

    def _load(self, head: Mapping[str, Any], assembly: Assembly) -> None:
        self._assembly = assembly
        if head["piece"] == 0:
            self.state = None
        if head["last"]:
            self.state, self.position = assembly.state(), head["n"]
            self.generation, self._assembly = head["g"], Assembly()

    def _copy(self, head: Mapping[str, Any], command: Command) -> None:
        if self.state is None or head["n"] != self.position + 1 or head["g"] != self.generation:
            raise OutOfStep(f"change {head['n']} came after {self.position}")
        self.state.do(command)
        self.position = head["n"]
