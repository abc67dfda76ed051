"""Links between hosts that carry nothing, although both hosts are there: said at once, and remembered for the end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from shoal.core.world import Member
from shoal.elastic.status import AgentWord

# what ended less than so long ago may be why a wait has ended; and where it comes again, it is the same silence
_LATELY_S = 30.0


@dataclass(frozen=True)
class Silence:
    """Two workers on two hosts that do not hear each other. `until_s`: when that was no longer said; None: it is."""

    one: Member
    other: Member
    until_s: float | None = None

    def __str__(self) -> str:
        one, other = self.one, self.other
        return (
            f"{one} ({one.address}) and {other} ({other.address}) do not hear each other, although both reach the "
            "coordinator"
        )


class Links:
    """Follows the coordinator's words, and finds pairs of hosts that do not hear each other. A silence is told once,
    however many workers and views meet it."""

    def __init__(self) -> None:
        self._silences: dict[tuple[str, str], Silence] = {}  # by the hosts

    def hear(self, word: AgentWord, now_s: float | None = None) -> list[str]:
        """What there is to tell."""
        now_s = time.monotonic() if now_s is None else now_s
        known, words = self._lately(now_s), []
        silent = _silent(word)
        for hosts, silence in silent.items():
            if hosts not in known:
                words.append(
                    f"{silence}. No step can end: all wait until the link is back, at most comm.timeout_s. Look at "
                    "routes and firewalls between the two hosts (`shoal doctor --hosts` measures every link)"
                )
        ended = {
            hosts: one if one.until_s is not None else Silence(one.one, one.other, now_s)
            for hosts, one in known.items()
            if hosts not in silent
        }
        self._silences = {**ended, **silent}
        return words

    def _lately(self, now_s: float) -> dict[tuple[str, str], Silence]:
        return {
            hosts: one
            for hosts, one in self._silences.items()
            if one.until_s is None or now_s - one.until_s < _LATELY_S
        }

    def blame(self, now_s: float | None = None) -> str:
        """Who is to blame where a run ends for want of an answer; empty: no link."""
        now_s = time.monotonic() if now_s is None else now_s
        return "; ".join(map(str, self._lately(now_s).values()))


def _silent(word: AgentWord) -> dict[tuple[str, str], Silence]:
    found: dict[tuple[str, str], Silence] = {}
    members = word.view.members if word.view is not None else ()
    by_key = {member.key: member for member in members}
    for key, rank in word.unheard.items():
        if key in by_key and rank < len(members) and by_key[key].host != members[rank].host:
            one, other = sorted((by_key[key], members[rank]), key=lambda member: member.rank)
            found.setdefault((one.host, other.host), Silence(one, other))
    return found
