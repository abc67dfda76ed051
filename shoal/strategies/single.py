"""One worker, no communication: the reference that every other strategy is held to."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.core.errors import NonFiniteLoss
from shoal.core.state import ShardedState
from shoal.strategies.base import Needs, Runtime, StepResult, Strategy, Sums, Work
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program
from shoal.strategies.replica import ModelReplica, committed_indices, span_of


class SingleReplica(ModelReplica):
    """A model whose gradients stay where they are, or are added up in float64 where exact sums are asked for."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        super().__init__(program, runtime)
        self._sums: list[Tensor] | None = None
        if runtime.exact_sums:
            self._sums = [torch.zeros_like(p, dtype=torch.float64) for _, p in self.parameters]
        self._used = [False] * len(self.parameters)

    def collect(self) -> None:
        if self._sums is None:
            return
        for at, (total, (_, parameter)) in enumerate(zip(self._sums, self.parameters, strict=True)):
            if parameter.grad is not None:
                total.add_(self.dense(parameter))
                self._used[at] = True
                parameter.grad = None

    def divide(self, divisor: float) -> None:
        """Put the gradient of the global batch into the parameters."""
        if self._sums is None:
            grads = []
            for _, parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad = self.dense(parameter)
                    grads.append(parameter.grad)
            torch._foreach_mul_(grads, 1.0 / divisor)
            return
        for at, (total, (_, parameter)) in enumerate(zip(self._sums, self.parameters, strict=True)):
            if self._used[at]:
                # a copy, also where the parameter is in double precision itself: `total` is cleared
                parameter.grad = total.mul_(1.0 / divisor).to(parameter.dtype, copy=True)
                total.zero_()
        self._used = [False] * len(self.parameters)


class Single(Strategy[SingleReplica]):
    """Train in this process alone."""

    name = "single"
    needs = Needs(max_workers=1, survives=True, statistics=True)

    def bind(self, program: Program, runtime: Runtime) -> SingleReplica:
        return SingleReplica(program, runtime)

    def step(self, replica: SingleReplica, work: Work) -> StepResult:
        step = work.batch.cursor.step
        gradient = replica.compute(work, before_last=lambda gradient: None)
        if not math.isfinite(gradient.loss_sum):
            replica.buffers.rollback()
            raise NonFiniteLoss(step, [0])
        replica.runtime.control.enter(replica.runtime.world.seat, step, "update")
        with replica.runtime.spans("update"):
            divided = replica.program.objective.divided and gradient.weight != 0
            replica.divide(gradient.weight if divided else 1.0)
            change = torch.empty(replica.buffers.numel, dtype=torch.float64)
            replica.buffers.changes(change)
            replica.update(work.learning_rates, change)
        return StepResult(
            gradient.loss_sum,
            gradient.weight,
            committed_indices(work),
            work.stop,
            change=work.change,
            spans=(span_of(work),),
        )

    def discard(self, replica: SingleReplica) -> None:
        replica.discard()

    def reconfigure(self, replica: SingleReplica, program: Program, runtime: Runtime) -> SingleReplica:
        replica.runtime = runtime
        return replica

    def evaluate(self, replica: SingleReplica, batch: Batch) -> Sums:
        return replica.evaluate(batch)

    def state(self, replica: SingleReplica) -> ShardedState:
        return replica.state()

    def load(self, replica: SingleReplica, state: ShardedState) -> None:
        replica.load(state)

    def initial_learning_rates(self, replica: SingleReplica) -> tuple[float, ...]:
        return replica.initial_learning_rates
