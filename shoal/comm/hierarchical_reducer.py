"""Buckets of gradients that are summed within a team, and between teams by their leaders.

A bucket that the team has summed goes over the link while the leader still computes later ones. What comes back is
divided once, by the leader, and handed to its team.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.comm.group import BucketReducer, BucketSpec

if TYPE_CHECKING:
    from shoal.comm.hierarchical import HierarchicalGroup

_WHAT = "the sum of gradients"


class HierarchicalReducer(BucketReducer):
    """See `BucketReducer`. The buffers are those of the team's own reducer. A row is a member's weight and facts; the
    facts of a leader, between leaders, are the rows of its team, filled up to those of the largest one. A leader may be
    given the reducer to use between leaders (of `facts_between_leaders`, and buckets that are not divided)."""

    def __init__(
        self, group: HierarchicalGroup, buckets: Sequence[BucketSpec], facts: int, outer: BucketReducer | None = None
    ) -> None:
        self._group, self._specs = group, tuple(buckets)
        sums = [replace(spec, divided=False) for spec in buckets]
        self._row = torch.zeros(1 + facts, dtype=torch.float64)
        self._inner = group.inner.reducer(sums, 1 + facts)
        self.buffers = self._inner.buffers
        self._widest = max(len(team) for team in group.teams)
        self._outer = outer
        if outer is None and group.outer is not None:
            self._outer = group.outer.reducer(sums, self.facts_between_leaders(group, facts))
        self._unmarked: set[int] = set()
        self._to_pass: list[int] = []  # marked, and not yet given to the other leaders

    @staticmethod
    def facts_between_leaders(group: HierarchicalGroup, facts: int) -> int:
        return max(len(team) for team in group.teams) * (1 + facts)

    def open(self, weight: float) -> None:
        self._row[0] = weight
        self._unmarked = set(range(len(self.buffers)))
        self._to_pass.clear()
        self._inner.open(1.0)
        if self._outer is not None:
            self._outer.open(1.0)

    def ready(self, bucket: int) -> None:
        self._unmarked.remove(bucket)
        self._inner.ready(bucket)
        if self._outer is not None:
            self._to_pass.append(bucket)
            for each in self._to_pass.copy():
                if self._inner.reduced(each):
                    self._pass(self._outer, each)

    def _pass(self, outer: BucketReducer, bucket: int) -> None:
        """The team's sum of `bucket` goes to the other leaders."""
        self._to_pass.remove(bucket)
        outer.buffers[bucket].copy_(self.buffers[bucket])
        outer.ready(bucket)

    def finish(self, facts: Tensor) -> Tensor:
        if self._unmarked:
            raise RuntimeError(f"finish() before ready() of buckets {sorted(self._unmarked)}")
        self._row[1:] = facts
        rows = torch.zeros(self._group.size, len(self._row), dtype=torch.float64)
        with self._group.up():
            of_team = self._inner.finish(self._row)
        if self._outer is not None:
            self._exchange(self._outer, of_team, rows)
        inner = self._group.inner
        with self._group.down():
            inner.broadcast(rows, 0, _WHAT)
            for buffer in self.buffers:
                inner.broadcast(buffer, 0, _WHAT)
        return rows[:, 1:].clone()

    def _exchange(self, outer: BucketReducer, of_team: Tensor, rows: Tensor) -> None:
        """What a leader does: its buffers and `rows` then hold the result."""
        for bucket in self._to_pass.copy():
            self._pass(outer, bucket)
        mine = torch.zeros(self._widest, len(self._row), dtype=torch.float64)
        mine[: len(of_team)] = of_team
        with self._group.across():
            of_teams = outer.finish(mine.flatten()).view(-1, self._widest, len(self._row))
        total = 0.0
        for rank, (team, place) in enumerate(self._group.places):
            rows[rank] = of_teams[team, place]
            total += float(rows[rank, 0])
        for spec, buffer, whole in zip(self._specs, self.buffers, outer.buffers, strict=True):
            if spec.divided and total != 0:
                torch.mul(whole, 1.0 / total, out=buffer)
            else:
                buffer.copy_(whole)
