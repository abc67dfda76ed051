"""A strategy that no one ships: between steps no worker has all parameters.

It shows that training, sharing out and state fit the interface without the trainer knowing of it.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.errors import NonFiniteLoss
from shoal.core.grains import shares
from shoal.core.state import Piece, ShardedState
from shoal.strategies.base import Runtime, StepResult, Strategy, Sums, Work
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program
from shoal.strategies.replica import ModelReplica, clip_gradients, clip_weights, committed_indices
from shoal.testing.checks import check_training
from shoal.testing.contract import CLIPS, short
from shoal.testing.ranks import RankHarness
from shoal.testing.subjects import MAIN
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks]


class RowsReplica(ModelReplica):
    """Has some rows of every parameter, and of the optimizer's state. The others are not a number between steps."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        super().__init__(program, runtime)
        size, rank = runtime.group.size, runtime.group.rank
        self.rows = [shares(p.shape[0], [1.0] * size)[rank] for _, p in self.parameters]
        self.shards = [
            nn.Parameter(p.detach()[rows.start : rows.stop].clone())
            for (_, p), rows in zip(self.parameters, self.rows, strict=True)
        ]
        assert not isinstance(program.optimizer, torch.optim.Optimizer)
        self.optimizer = program.optimizer(self.shards)
        self.forget()

    @torch.no_grad()
    def gather(self) -> None:
        for (name, parameter), rows, shard in zip(self.parameters, self.rows, self.shards, strict=True):
            parameter.zero_()
            parameter[rows.start : rows.stop] = shard
            self.runtime.group.all_reduce(parameter.data, f"gathering {name}")

    @torch.no_grad()
    def forget(self) -> None:
        for (_, parameter), rows in zip(self.parameters, self.rows, strict=True):
            parameter[: rows.start] = torch.nan
            parameter[rows.stop :] = torch.nan


class Rows(Strategy[RowsReplica]):
    name = "rows"

    def bind(self, program: Program, runtime: Runtime) -> RowsReplica:
        return RowsReplica(program, runtime)

    def step(self, replica: RowsReplica, work: Work) -> StepResult:
        group = replica.runtime.group
        replica.gather()
        gradient = replica.compute(work, before_last=lambda gradient: None)
        facts = torch.tensor([gradient.loss_sum, gradient.weight, float(work.stop)], dtype=torch.float64)
        group.all_reduce(facts, "adding up losses")
        loss_sum, weight, stop = facts.tolist()
        if not math.isfinite(loss_sum):
            raise NonFiniteLoss(work.batch.cursor.step, range(group.size))
        whole = [p for _, p in replica.parameters]
        for parameter in whole:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            group.all_reduce(parameter.grad, "adding up a gradient")
            parameter.grad /= weight
        clip_gradients(replica.runtime.clip, whole)
        for parameter, rows, shard in zip(whole, replica.rows, replica.shards, strict=True):
            assert parameter.grad is not None
            shard.grad = parameter.grad[rows.start : rows.stop].clone()
            parameter.grad = None
        for options, rate in zip(replica.optimizer.param_groups, work.learning_rates, strict=True):
            options["lr"] = rate
        replica.optimizer.step()
        clip_weights(replica.runtime.clip, replica.shards)
        change = torch.empty(replica.buffers.numel, dtype=torch.float64)
        replica.buffers.changes(change)
        group.all_reduce(change, "adding up statistics")
        replica.buffers.commit(change)
        replica.forget()
        return StepResult(loss_sum, weight, committed_indices(work), bool(stop))

    def evaluate(self, replica: RowsReplica, batch: Batch) -> Sums:
        raise NotImplementedError

    def state(self, replica: RowsReplica) -> ShardedState:
        pieces: dict[str, Piece] = {}
        for (name, parameter), rows, shard in zip(replica.parameters, replica.rows, replica.shards, strict=True):
            offset = (rows.start, *(0,) * (parameter.dim() - 1))
            pieces[f"model.{name}"] = Piece(shard.detach(), tuple(parameter.shape), offset)
        if replica.runtime.world.is_first:
            pieces.update({f"model.{n}": Piece.whole(buffer) for n, buffer in replica.module.named_buffers()})
        return ShardedState(pieces)

    def load(self, replica: RowsReplica, state: ShardedState) -> None:
        raise NotImplementedError

    def initial_learning_rates(self, replica: RowsReplica) -> tuple[float, ...]:
        return replica.initial_learning_rates


def _unknown(tensors: dict[str, Tensor]) -> int:
    return sum(int(tensor.isnan().sum()) for tensor in tensors.values())


@pytest.mark.parametrize("subject", MAIN)
def test_a_model_that_no_worker_has_trains_the_same(ranks: RankHarness, tmp_path: Path, subject: str) -> None:
    trial = Trial(ranks, Rows, tmp_path, {"eval_every": "never"}, replicated=False)
    plans = [short(subject), short(subject, optimizer="adamw", clip=CLIPS["norm"])]
    for plan, trained in zip(plans, trial.train(3, *map(trial.order, plans)), strict=True):
        check_training(trained, plan)
        missing = np.array([_unknown(record.held) for record in trained.ranks])
        assert (missing > 0).all(), "a worker had the whole model"
