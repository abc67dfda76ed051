"""A view split into teams: who works closely together, and who speaks for each of them.

Teams are a pure function of the view, so all members find the same ones without asking each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from shoal.core.errors import ConfigError, ShoalError
from shoal.core.world import Member, View

Rule = int | Literal["host"]
Teams = tuple[tuple[Member, ...], ...]


@dataclass(frozen=True)
class Part:
    """Members of a view, in the order of ranks, that form a group of their own. They keep their ranks of the view;
    their place among `members` is the rank in the group.

    `number` tells apart the parts of one view, from 1; 0 is the view as a whole. No two parts of a view that have
    members on the same host may have the same number, not even one after the other.
    """

    number: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        ranks = [member.rank for member in self.members]
        if not ranks or ranks != sorted(set(ranks)) or self.number < 0:
            raise ShoalError(f"part {self.number} of a view cannot have the members {ranks}: each once, by rank")

    @classmethod
    def whole(cls, view: View) -> Part:
        """All members of `view`."""
        return cls(0, view.members)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that its members have in the view."""
        return tuple(member.rank for member in self.members)

    def neighbours(self, member: Member) -> tuple[Member, ...]:
        """The members that share a control page with `member`, itself included."""
        return tuple(other for other in self.members if other.agent == member.agent)


def teams(view: View, rule: Rule) -> Teams:
    """Split the members of `view`: every one is in exactly one team, a team is in the order of ranks, and teams are in
    the order of their first members, which are their leaders.

    "host": those that share a host make a team. A number: teams of so many members; as many as possible are within a
    host, and those that are left over there make teams with those of the next hosts, of which the last may be smaller.
    """
    return split(view.members, rule)


def split(members: Iterable[Member], rule: Rule) -> Teams:
    """The same for some members of a view."""
    hosts: dict[str, list[Member]] = {}
    for member in sorted(members, key=lambda one: one.rank):
        hosts.setdefault(member.agent, []).append(member)
    if rule == "host":
        return _ordered(hosts.values())
    if rule < 1:
        raise ConfigError(f"hybrid.team={rule}: a team has at least one worker. Use 1 or more, or host")
    full = [host[at : at + rule] for host in hosts.values() for at in range(0, len(host) - rule + 1, rule)]
    left_over = list(chain.from_iterable(host[len(host) - len(host) % rule :] for host in hosts.values()))
    mixed = [left_over[at : at + rule] for at in range(0, len(left_over), rule)]
    return _ordered([*full, *mixed])


def leaders(of: Teams) -> tuple[Member, ...]:
    """The first member of each team: those that speak with other teams."""
    return tuple(team[0] for team in of)


def _ordered(groups: Iterable[Iterable[Member]]) -> Teams:
    each = [tuple(sorted(group, key=lambda member: member.rank)) for group in groups]
    return tuple(sorted(each, key=lambda team: team[0].rank))
