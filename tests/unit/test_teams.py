"""Teams: every member in exactly one, whatever the hosts; and parts of a view that make sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ConfigError, ShoalError
from shoal.core.teams import Part, Rule, leaders, split, teams
from shoal.core.world import Member, View

pytestmark = pytest.mark.unit

hosts = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)
rules = st.one_of(st.just("host"), st.integers(1, 13))


def view_of(agents: str | list[str]) -> View:
    """A view with a member on each of these hosts."""
    members = [Member("worker", rank, f"name-{agent}", 1, str(rank), agent, 0) for rank, agent in enumerate(agents)]
    return View(1, tuple(members))


def ranks(agents: str, rule: Rule) -> list[list[int]]:
    return [[member.rank for member in team] for team in teams(view_of(agents), rule)]


@given(agents=hosts, rule=rules)
def test_every_member_is_in_one_team_and_the_order_is_kept(agents: list[str], rule: Rule) -> None:
    view = view_of(agents)
    found = teams(view, rule)
    assert sorted(member.rank for team in found for member in team) == list(range(view.size))
    for team in found:
        assert list(team) == sorted(team, key=lambda member: member.rank)
    assert list(leaders(found)) == sorted(leaders(found), key=lambda member: member.rank)
    assert all(member == view.members[member.rank] for team in found for member in team)


@given(agents=hosts, rule=rules, order=st.randoms(use_true_random=False))
def test_teams_depend_on_nothing_but_members_and_rule(agents: list[str], rule: Rule, order: object) -> None:
    view = view_of(agents)
    shuffled = list(view.members)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert teams(view, rule) == split(shuffled, rule)


@given(agents=hosts)
def test_the_team_of_a_host_is_all_of_its_members(agents: list[str]) -> None:
    found = teams(view_of(agents), "host")
    assert [{member.agent for member in team} for team in found] == [{agent} for agent in dict.fromkeys(agents)]


@given(agents=hosts, size=st.integers(1, 13))
def test_as_many_teams_as_possible_are_within_a_host(agents: list[str], size: int) -> None:
    found = teams(view_of(agents), size)
    assert len(found) == -(-len(agents) // size), "no more teams than needed"
    assert all(len(team) <= size for team in found)
    assert sum(len(team) < size for team in found) <= 1
    full_within = sum(len(team) == size and len({member.agent for member in team}) == 1 for team in found)
    assert full_within >= sum(agents.count(agent) // size for agent in set(agents))


@pytest.mark.parametrize(
    ("agents", "rule", "expected"),
    [
        ("aabb", "host", [[0, 1], [2, 3]]),
        ("abab", "host", [[0, 2], [1, 3]]),
        ("abbb", "host", [[0], [1, 2, 3]]),
        ("aaaa", "host", [[0, 1, 2, 3]]),
        ("aaaa", 2, [[0, 1], [2, 3]]),
        ("aaabbb", 2, [[0, 1], [2, 5], [3, 4]]),
        ("aabb", 4, [[0, 1, 2, 3]]),
        ("abab", 2, [[0, 2], [1, 3]]),
        ("aabb", 3, [[0, 1, 2], [3]]),
        ("aaaaa", 2, [[0, 1], [2, 3], [4]]),
        ("ab", 1, [[0], [1]]),
    ],
)
def test_teams_by_example(agents: str, rule: Rule, expected: list[list[int]]) -> None:
    assert ranks(agents, rule) == expected


def test_hosts_of_the_same_name_are_told_apart() -> None:
    members = tuple(Member("worker", rank, "localhost", 1, str(rank), f"agent-{rank}") for rank in range(2))
    assert len(teams(View(1, members), "host")) == 2


def test_a_team_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hybrid\.team=0.*1 or more, or host"):
        teams(view_of("ab"), 0)


def test_a_part_has_each_member_once_and_by_rank() -> None:
    a, b, c = view_of("aab").members
    assert Part(1, (a, c)).ranks == (0, 2)
    assert Part.whole(view_of("aab")).neighbours(b) == (a, b)
    for wrong in ((), (b, a), (a, a)):
        with pytest.raises(ShoalError, match="part 1 of a view"):
            Part(1, wrong)
    with pytest.raises(ShoalError, match="part -1"):
        Part(-1, (a,))
