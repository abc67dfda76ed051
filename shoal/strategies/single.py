"""One worker, no communication: the reference that every other strategy is held to."""

from __future__ import annotations

import math

import torch

from shoal.core.errors import NonFiniteLoss
from shoal.core.state import ShardedState
from shoal.strategies.base import Needs, Runtime, StepResult, Strategy, Sums, Work
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program
from shoal.strategies.replica import ModelReplica, committed_indices


class Single(Strategy[ModelReplica]):
    """Train in this process alone."""

    name = "single"
    needs = Needs(max_workers=1)

    def bind(self, program: Program, runtime: Runtime) -> ModelReplica:
        return ModelReplica(program, runtime)

    def step(self, replica: ModelReplica, work: Work) -> StepResult:
        step = work.batch.cursor.step
        gradient = replica.compute(work, before_last=lambda gradient: None)
        if not math.isfinite(gradient.loss_sum):
            replica.buffers.rollback()
            raise NonFiniteLoss(step, [0])
        replica.runtime.control.enter(0, step, "update")
        with replica.runtime.spans("update"):
            grads = [parameter.grad for _, parameter in replica.parameters if parameter.grad is not None]
            if replica.program.objective.divided and gradient.weight:
                torch._foreach_mul_(grads, 1.0 / gradient.weight)
            change = torch.empty(replica.buffers.numel)
            replica.buffers.changes(change)
            replica.update(work.learning_rates, change)
        return StepResult(gradient.loss_sum, gradient.weight, committed_indices(work), work.stop)

    def evaluate(self, replica: ModelReplica, batch: Batch) -> Sums:
        return replica.evaluate(batch)

    def state(self, replica: ModelReplica) -> ShardedState:
        return replica.state()

    def load(self, replica: ModelReplica, state: ShardedState) -> None:
        replica.load(state)

    def initial_learning_rates(self, replica: ModelReplica) -> tuple[float, ...]:
        return replica.initial_learning_rates
