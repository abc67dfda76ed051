"""Incremental training (local SGD): trainers take local steps for a round, then their weights are averaged.

A *trainer* is one worker, or a team of workers that train together by an inner strategy. In a round every trainer
leases tasks, does a local step for each unit of them, and at the end sends how far its weights have moved: once a
round, not once a step. The average is weighted by samples, and an outer optimizer applies it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.core.state import ShardedState
from shoal.core.teams import Rule
from shoal.strategies.base import Needs, Runtime, StepResult, Strategy, Sums, Work
from shoal.strategies.incremental_replica import IncrementalReplica
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program
from shoal.strategies.single import Single


class Incremental(Strategy[IncrementalReplica]):
    """Train locally, average now and then."""

    name = "incremental"
    needs = Needs(survives=True, leases=True, sizes=True, whole=True)

    def __init__(self, inner: Strategy[Any] | None = None, team: Rule = 1) -> None:
        self._inner, self._team = inner if inner is not None else Single(), team
        if team != 1:  # what another worker adds depends on the team that it comes into
            self.needs = replace(self.needs, sizes=False)  # type: ignore[misc]

    def bind(self, program: Program, runtime: Runtime) -> IncrementalReplica:
        return IncrementalReplica(self._inner, self._team, program, runtime)

    def reach(self, replica: IncrementalReplica) -> int:
        return replica.plan.batches if replica.plan is not None else replica.pace.steps

    def step(self, replica: IncrementalReplica, work: Work) -> StepResult:
        return replica.round(work)

    def discard(self, replica: IncrementalReplica) -> None:
        self._inner.discard(replica.bound)
        replica.averager.discard()

    def reconfigure(self, replica: IncrementalReplica, program: Program, runtime: Runtime) -> IncrementalReplica:
        replica.reattach(program, runtime)
        return replica

    def live_state(self, replica: IncrementalReplica) -> ShardedState:
        return replica.live_state()

    def evaluate(self, replica: IncrementalReplica, batch: Batch) -> Sums:
        return self._inner.evaluate(replica.bound, batch)

    def state(self, replica: IncrementalReplica) -> ShardedState:
        whole = replica.whole(self._inner.state(replica.bound), moments=True)
        return whole if replica.runtime.world.is_first else ShardedState()

    def load(self, replica: IncrementalReplica, state: ShardedState) -> None:
        replica.load(state)

    def initial_learning_rates(self, replica: IncrementalReplica) -> tuple[float, ...]:
        return self._inner.initial_learning_rates(replica.bound)

    def close(self, replica: IncrementalReplica) -> None:
        self._inner.close(replica.bound)
