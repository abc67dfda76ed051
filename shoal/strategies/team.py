"""A worker's team in a view: those with whom it works closely, and who speaks for them with others."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.comm.group import Group
from shoal.comm.solo import SoloGroup
from shoal.core.teams import Part, Rule, Teams, leaders, teams
from shoal.core.world import Member
from shoal.strategies.base import Runtime

_LEADERS = 1  # the number of their part; those of teams follow


@dataclass(frozen=True)
class Team:
    """`group` is that of the team; its leader has rank 0 there. `all` are the teams of the view, of which this is
    number `number`."""

    all: Teams
    number: int
    group: Group

    @property
    def members(self) -> tuple[Member, ...]:
        return self.all[self.number]

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def rank(self) -> int:
        """This worker's, within the team."""
        return self.group.rank

    @property
    def leads(self) -> bool:
        return self.group.rank == 0

    def hear(self, word: bytes, what: str) -> bytes:
        """The leader's word; that of the others is not looked at. Collective within the team."""
        return self.group.gather_bytes(word if self.leads else b"", what)[0]


def find_team(runtime: Runtime, rule: Rule) -> Team:
    """This worker's team by `rule`, with a group of its own. Collective, once in a view."""
    found = teams(runtime.view, rule)
    me = runtime.view.members[runtime.world.rank]
    number = next(at for at, team in enumerate(found) if me in team)
    return Team(found, number, _subgroup(runtime, Part(_LEADERS + 1 + number, found[number])))


def group_of_leaders(runtime: Runtime, team: Team) -> Group | None:
    """What joins the leaders of all teams; None on others. Collective, once in a view, after `find_team`."""
    if len(team.all) == runtime.view.size:
        return runtime.group
    return _subgroup(runtime, Part(_LEADERS, leaders(team.all))) if team.leads else None


def _subgroup(runtime: Runtime, part: Part) -> Group:
    if part.size == 1:
        return SoloGroup()
    assert runtime.subgroup is not None, "a run offers groups of some of its members"
    return runtime.subgroup(part)
