"""What a launcher learns of workers on other hosts: their agents hold them, the coordinator tells of their losses."""

from __future__ import annotations

import time
from dataclasses import dataclass

from shoal.core.world import Member, View
from shoal.elastic.status import AgentWord
from shoal.launch.failure import Account, Casualty, silence_s


@dataclass(frozen=True)
class LostElsewhere:
    """A worker of another host that was a member of view `view`, of `size`."""

    member: Member
    cause: str
    view: int
    size: int

    def casualty(self, step: int, now_s: float | None = None) -> Casualty:
        """For the record; `step`: how far the run was. When it failed is known only if it fell silent."""
        now_s = time.monotonic() if now_s is None else now_s
        silent_s = silence_s(self.cause)
        silent, detected_s = silent_s is not None, silent_s or 0.0
        words = f"{self.cause}. It may have been cut off, or its host is gone." if silent else self.cause
        account = Account("frozen" if silent else "ended", words, self.cause, from_within=False)
        return Casualty(
            self.member.rank,
            account,
            step,
            "unknown",
            detected_s,
            size=self.size,
            view=self.view,
            failed_s=now_s - detected_s,
        )


class Elsewhere:
    """Follows the coordinator's words to the agent `name`, and finds the losses in them that are not its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._members: dict[str, tuple[Member, View]] = {}
        self._told: set[str] = set()

    def hear(self, word: AgentWord) -> list[LostElsewhere]:
        """Members of other hosts that are lost, each once."""
        found = []
        for key, cause in word.lost.items():
            if key in self._members and key not in self._told:
                member, view = self._members[key]
                found.append(LostElsewhere(member, cause, view.number, view.size))
                self._told.add(key)
        if word.view is not None:
            for member in word.view.members:
                if member.agent != self._name:
                    self._members[member.key] = member, word.view
        return found
