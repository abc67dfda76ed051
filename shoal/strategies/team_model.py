"""A model held by servers, in a team: the leader reads it for all, and touched rows of tables come together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.comm.handing import overwrite
from shoal.core.teams import Rule
from shoal.store.errors import StateLost
from shoal.strategies.base import Runtime
from shoal.strategies.buckets import GradientBuckets
from shoal.strategies.gradient_accumulator import GradientAccumulator
from shoal.strategies.likeness import Likeness
from shoal.strategies.objective import LossSum
from shoal.strategies.program import Program
from shoal.strategies.served_model import ServedModel
from shoal.strategies.team import find_team
from shoal.strategies.touched import add_up, pack, touched_rows, unpack

FACTS = 6  # that members of a team tell each other of a step


class TeamModel(ServedModel):
    """`rule` says who is a team: workers that add their gradients up before they go to the servers. A worker on its own
    is a team of one. Gradients arrive bucket by bucket; `on_final` is called within backward when one is final."""

    def __init__(
        self, program: Program, runtime: Runtime, rule: Rule, local: bool, on_final: Callable[[], None]
    ) -> None:
        super().__init__(program, runtime, local)
        self._rule = rule
        self.lost = False  # the servers have another state than this worker knows of, and the group does not know yet
        self._rows: dict[str, Tensor] = {}  # by table: what the passes of this step have given
        dense = [(name, parameter) for name, parameter in self._keys.items() if name not in self._table_keys]
        self._dense_keys = list(reversed(dense))  # about as backward finishes them
        self._arriving = GradientAccumulator(self._dense_keys, self.dense, on_final)

    def _arrange(self, runtime: Runtime) -> None:
        """Find the team of this worker in the view. Collective."""
        self.runtime, self.team = runtime, find_team(runtime, self._rule)
        self.meet(runtime)
        self.likeness = Likeness(self.module, runtime.view, runtime.world.device)
        keys, within = self._dense_keys, replace(runtime, group=self.team.group)
        buckets = GradientBuckets(keys, self.buffers.numel, FACTS + len(keys), within, None, divided=False)
        self._arriving.attach(buckets, FACTS)
        self._touched = {name: [] for name in self._table_keys} if self.team.size > 1 else {}

    def unless_lost(self, do: Callable[[], None]) -> None:
        """Ask servers for something, unless they are known to have gone back. That they have is noted: the group hears
        of it when it agrees on something."""
        if not self.lost:
            try:
                do()
            except StateLost:
                self.lost = True

    def agree(self, word: Mapping[str, Any], what: str) -> list[dict[str, Any]]:
        """Everyone's word. Raises `StateLost` on all workers where one of them has noticed it. Collective."""
        told = self.runtime.group.gather_bytes(json.dumps({**word, "lost": self.lost}).encode(), what)
        words: list[dict[str, Any]] = [json.loads(one) for one in told]
        if any(one["lost"] for one in words):
            self.lost = False
            self.discard()
            raise StateLost(self.era)
        return words

    def backward(self, loss: LossSum) -> None:
        with self._arriving.counting():
            super().backward(loss)

    # ---- tables

    def collect(self) -> None:
        """Gradients of tables are kept by rows; those of other parameters have gone into buckets."""
        for name in self._table_keys:
            grad = self._keys[name].grad
            if grad is not None and self.runtime.exact_sums:
                wide = grad.detach().to(torch.float64)
                self._rows[name] = self._rows[name] + wide if name in self._rows else wide
                self._keys[name].grad = None
            elif grad is not None:
                self._rows[name] = grad.detach()  # of all passes so far

    def _gather_rows(self) -> None:
        """The touched rows of all members come together."""
        said = [touched_rows(self._rows[name]) if name in self._rows else None for name in self._table_keys]
        told = self.team.group.gather_bytes(pack(said), "the touched rows of tables")
        tables = [self._keys[name].detach() for name in self._table_keys]
        likes = [table[:1].double() if self.runtime.exact_sums else table[:1] for table in tables]
        by_table = zip(*(unpack(one, likes) for one in told), strict=True)
        sums = [add_up(of_all, table.shape) for of_all, table in zip(by_table, tables, strict=True)]
        self._rows = {name: one for name, one in zip(self._table_keys, sums, strict=True) if one is not None}

    # ---- what is read back

    def pull(self) -> None:
        """The model becomes what the servers hold, on all members of the team. Collective within the team."""
        if self.team.leads:
            self.unless_lost(self.download)
        self.hand_down()

    @torch.no_grad()
    def hand_down(self) -> None:
        """The members of the team get the leader's model. Collective within the team."""
        group = self.team.group
        if group.size == 1:
            return
        tables = [] if self.local else self._table_keys  # with weights of its own, all rows are the leader's own
        statistics = self.buffers.read()
        dense = {name: p.detach() for name, p in self._keys.items() if name not in tables}
        overwrite(group, 0, {**dense, "running statistics": statistics})
        if not self.team.leads:
            self.buffers.assign(statistics)
        if tables:
            self._hand_down_rows(tables)
        for rows in self._touched.values():
            rows.clear()

    def _hand_down_rows(self, tables: list[str]) -> None:
        values = [self._keys[name].detach() for name in tables]
        said = []
        if self.team.leads:
            for name, table in zip(tables, values, strict=True):
                rows = torch.from_numpy(np.unique(np.concatenate([np.empty(0, np.int64), *self._touched[name]])))
                said.append((rows, table[rows]))
        told = self.team.hear(pack(said), "the changed rows of tables")
        if not self.team.leads:
            for table, one in zip(values, unpack(told, values), strict=True):
                assert one is not None
                table[one[0]] = one[1]
