"""How a run that was asked to stop and stands still is brought to its end: decisions as values, without processes and
without a clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from shoal.core.world import Member
from shoal.elastic.status import Still
from shoal.launch.hang import Pace
from shoal.launch.stillness import Sight, Stillness, stuck, unusual_s


@dataclass(frozen=True)
class Relieve:
    """End these, so that the others come to the end of the step and save."""

    stuck: tuple[tuple[Member, Still], ...]


@dataclass(frozen=True)
class GiveUp:
    """End the run: it never will by itself. `words` say why."""

    words: str


class Halt:
    """What the agent of a host knows of a run that was asked to stop, from the first `look` on. Only that of the
    launcher judges. `least_s`: who does not move has not for so long, at least."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._stillness = Stillness(least_s)
        self._relieved: frozenset[str] | None = None  # keys
        self._pace = Pace()
        self.still: dict[str, Still] = {}  # who does not move, of this host

    def look(self, now_s: float, sights: Mapping[str, Sight], present: Collection[str], pace: Pace) -> None:
        """Take in what is seen of the workers of this host that are at a step; `present`: all that take part."""
        self._pace = pace
        if len(sights) < len(present):  # somebody is at the end, where no step is
            self._stillness, self.still = Stillness(self._least_s), {}
        else:
            self.still = self._stillness.observe(now_s, sights, pace)

    def judge(
        self,
        members: Collection[Member],
        still: Mapping[str, Still],
        goes_on_without: Callable[[Collection[Member]], bool],
    ) -> Relieve | GiveUp | None:
        """What is to be done, given all `members` of the run and what is known of those of other hosts; None as long
        as somebody moves. Some are relieved once: what would hold the others up as well is not waited for."""
        named = {member.key: member for member in members}
        if self._relieved is not None and not self._relieved.isdisjoint(named):
            return None  # it is not known here yet that they are out
        still = {**still, **self.still}
        found = stuck(named, still)
        if found is None or (not found and self._may_hear(members, still)):
            return None
        culprits = tuple((named[key], one) for key, one in found.items())
        if culprits and self._relieved is None and goes_on_without([member for member, _ in culprits]):
            self._relieved = frozenset(found)
            return Relieve(culprits)
        return GiveUp(_words(culprits))

    def _may_hear(self, members: Collection[Member], still: Mapping[str, Still]) -> bool:
        """Whether members that all wait may wait for what is on its way between hosts, where nobody sees it."""
        if len({member.agent for member in members}) == 1:
            return False
        unknown = not self._pace.longest_s  # nobody has seen how long a step takes
        return unknown or min(still[member.key].seconds for member in members) <= unusual_s(self._pace)


def _words(culprits: Collection[tuple[Member, Still]]) -> str:
    """Who does not get on, and where."""
    same: dict[str, list[Member]] = {}
    for member, one in culprits:
        same.setdefault(f"on {member.host}: no progress at step {one.step} ({one.phase})", []).append(member)
    groups = (f"{', '.join(f'worker {member.rank}' for member in members)} {where}" for where, members in same.items())
    return "; ".join(groups) or "all workers wait for one another"
