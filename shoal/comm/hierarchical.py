"""A group in two levels: teams among themselves, and their leaders for them.

Where teams are hosts, only the leader of a host uses its link, and everything goes over it once, however many workers
the host has. An operation goes up (the team's part comes together at its leader), across (between the leaders), and
down again. Each of these stages has the deadline of its own group. Sums are taken within a team first, in the order of
its ranks, and then over teams: they depend on nothing but the teams.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from shoal.comm.group import BucketReducer, BucketSpec, Group
from shoal.core.errors import CollectiveTimeout
from shoal.core.teams import Teams
from shoal.core.world import Member

_LEADER = 0  # its rank in the team


class HierarchicalGroup(Group):
    """The group of all members of `teams`, in the process that is `member`. `inner` is the group of its team, `outer`
    that of the leaders, for those that are one; this group closes both."""

    def __init__(self, teams: Teams, member: Member, inner: Group, outer: Group | None) -> None:
        self.teams, self.inner, self.outer = teams, inner, outer
        ranks = sorted(one.rank for team in teams for one in team)
        self.rank, self.size, self.backend = ranks.index(member.rank), len(ranks), "hierarchical"
        places = {one.rank: (number, place) for number, team in enumerate(teams) for place, one in enumerate(team)}
        self.team = places[member.rank][0]
        self._ahead = False  # whether the leader may be in an earlier operation than its team
        self.places = [places[rank] for rank in ranks]  # of each member: its team, and its rank there

    def all_reduce(self, tensor: Tensor, what: str) -> None:
        with self.up():
            self.inner.all_reduce(tensor, what)
        if self.outer is not None:
            with self.across():
                self.outer.all_reduce(tensor, what)
        with self.down():
            self.inner.broadcast(tensor, _LEADER, what)

    def broadcast(self, tensor: Tensor, source: int, what: str) -> None:
        team, place = self.places[source]
        if team == self.team:
            with self.up():
                self.inner.broadcast(tensor, place, what)
            self._ahead = True
        if self.outer is not None:
            with self.across():
                self.outer.broadcast(tensor, team, what)
        if team != self.team:
            with self.down():
                self.inner.broadcast(tensor, _LEADER, what)

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        with self.up():
            everything = _pack(self.inner.gather_bytes(payload, what))
        if self.outer is not None:
            with self.across():
                everything = _pack(self.outer.gather_bytes(everything, what))
        with self.down():
            everything = self.inner.gather_bytes(everything if self.outer is not None else b"", what)[_LEADER]
        by_team = [_unpack(team) for team in _unpack(everything)]
        return [by_team[team][place] for team, place in self.places]

    def reducer(self, buckets: Sequence[BucketSpec], facts: int) -> BucketReducer:
        from shoal.comm.hierarchical_reducer import HierarchicalReducer

        return HierarchicalReducer(self, buckets, facts)

    def bytes_to_sum(self, payload_bytes: int) -> int:
        return self.inner.bytes_to_sum(payload_bytes) + (self.outer.bytes_to_sum(payload_bytes) if self.outer else 0)

    def coding(self) -> tuple[Group | None, int]:
        """Teams are near: what they sum is exact. Their leaders are far from each other."""
        return self.outer, len(self.teams)

    def barrier(self, what: str) -> None:
        with self.up():
            self.inner.barrier(what)
        if self.outer is not None:
            with self.across():
                self.outer.barrier(what)
        with self.down():
            self.inner.barrier(what)

    def interrupt(self) -> None:
        self.inner.interrupt()
        if self.outer is not None:
            self.outer.interrupt()

    def close(self) -> None:
        self.inner.close()
        if self.outer is not None:
            self.outer.close()

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """What is done in the team first: a leader that does not come may be between leaders still, for an operation
        that the team did not have to wait for."""
        try:
            yield
        except CollectiveTimeout as error:
            if self._ahead:
                raise self._beyond(error) from error
            raise

    @contextlib.contextmanager
    def across(self) -> Iterator[None]:
        """What is done with other leaders: one that does not come may be waiting for its team."""
        try:
            yield
        except CollectiveTimeout as error:
            late = [team for team in self.teams if team[_LEADER].rank in error.missing]
            missing = sorted(one.rank for team in late for one in team)
            raise CollectiveTimeout(error.operation, missing, error.elapsed_s) from error

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """What the leader does for its team when it has heard the others: if it does not come, it waits for them."""
        try:
            yield
        except CollectiveTimeout as error:
            raise self._beyond(error) from error
        self._ahead = False

    def _beyond(self, error: CollectiveTimeout) -> CollectiveTimeout:
        """If the leader is missing, then perhaps because it waits for any of the other teams."""
        mine, missing = self.teams[self.team], set(error.missing)
        if mine[_LEADER].rank in missing:
            missing.update(one.rank for team in self.teams if team != mine for one in team)
        return CollectiveTimeout(error.operation, sorted(missing), error.elapsed_s)


def _pack(parts: Iterable[bytes]) -> bytes:
    """Several payloads as one."""
    return b"".join(piece for part in parts for piece in (struct.pack("<Q", len(part)), part))


def _unpack(whole: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(whole):
        (length,) = struct.unpack_from("<Q", whole, at)
        parts.append(whole[at + 8 : at + 8 + length])
        at += 8 + length
    return parts
