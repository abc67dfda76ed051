"""What a launcher learns of workers on other hosts: their agents hold them, the coordinator tells who is lost, and its
views who has gone."""

from __future__ import annotations

import time
from dataclasses import dataclass

from shoal.core.phases import UNKNOWN
from shoal.core.world import Member, View
from shoal.elastic.status import AgentWord, Loss
from shoal.launch.failure import Account, Casualty, no_progress, silence_s


@dataclass(frozen=True)
class LostElsewhere:
    """A worker of another host that was a member of view `view`, of `size`."""

    member: Member
    loss: Loss
    view: int
    size: int

    def casualty(self, step: int, now_s: float | None = None) -> Casualty:
        """For the record; `step`: how far the run is here, where nobody has ever said how far the worker was. When it
        failed is known only if it fell silent or made no progress; where one was that fell silent may be out of date by
        a fraction of a lease."""
        now_s = time.monotonic() if now_s is None else now_s
        loss = self.loss
        cause, silent_s = loss.cause, silence_s(loss.cause)
        told = loss.phase != UNKNOWN
        if silent_s is None:
            account = Account("ended", cause, cause, from_within=False)
        elif no_progress(cause):  # its agent has seen it
            account = Account("hang", cause, cause, from_within=False)
        else:
            cause = f"{cause}, last heard of in {loss.phase} at step {loss.step}" if told else cause
            words = f"{cause}. It may have been cut off, or its host is gone."
            account = Account("frozen", words, cause, from_within=False)
        detected_s = silent_s or 0.0
        return Casualty(
            self.member.rank,
            account,
            loss.step if told else step,
            loss.phase,
            detected_s,
            size=self.size,
            view=self.view,
            failed_s=now_s - detected_s,
        )


class Elsewhere:
    """Follows the coordinator's words to the agent `name`, and finds in them which workers of other agents are lost or
    have left."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._members: dict[str, tuple[Member, View]] = {}
        self._told: set[str] = set()
        self._view = 0

    def hear(self, word: AgentWord) -> list[LostElsewhere]:
        """Members of other hosts that are lost, each once."""
        found = []
        for key, loss in word.lost.items():
            if key in self._members and key not in self._told:
                member, view = self._members[key]
                found.append(LostElsewhere(member, loss, view.number, view.size))
                self._told.add(key)
        if word.view is not None and word.view.number >= self._view:
            self._view = word.view.number
            for member in word.view.members:
                if member.agent != self._name:
                    self._members[member.key] = member, word.view
        return found

    def left(self, word: AgentWord) -> list[Member]:
        """Members of other hosts that a newer view is without, though nobody says that they are lost. Each once; to be
        asked before `hear` has heard the same word."""
        if word.view is None or word.view.number <= self._view or word.over:
            return []
        there = {member.key for member in word.view.members}
        gone = [
            member
            for key, (member, view) in self._members.items()
            if view.number == self._view and key not in there | self._told and key not in word.lost
        ]
        self._told |= {member.key for member in gone}
        return gone
