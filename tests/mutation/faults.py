"""Deliberate faults in Shoal's own code. Each is carried out on every rank before it trains.

A fault is put in by replacing a function by one that does nearly the same, so the code around it is the real one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import shoal.core.cursor
import shoal.core.order
import shoal.strategies.allreduce
import shoal.strategies.batch_statistics
import shoal.strategies.drawing
import shoal.strategies.replica
import shoal.train.draws
import shoal.train.run
from shoal.comm.shm import ShmGroup
from shoal.comm.shm_reducer import ShmReducer
from shoal.core.coverage import EpochCoverage
from shoal.core.errors import NonFiniteLoss
from shoal.core.order import WholeOrder, epoch_order
from shoal.data.loader import Loader
from shoal.data.tensors import TensorSource
from shoal.launch.session import Session
from shoal.strategies.allreduce import AllReduce, AllReduceReplica
from shoal.strategies.base import Work
from shoal.strategies.batch_statistics import BatchStatistics
from shoal.strategies.buffers import RunningBuffers
from shoal.strategies.drawing import SampleDrawing
from shoal.strategies.gradient_accumulator import GradientAccumulator
from shoal.strategies.objective import _FunctionObjective, _ModuleObjective
from shoal.strategies.replica import ModelReplica
from shoal.strategies.statistics_exchange import Exchange, Kind, Row
from shoal.testing.subjects import Subject
from shoal.train.rates import Rates
from shoal.train.run import Run
from shoal.train.saving import CoverageRecord, Saver


def put(owner: Any, name: str, value: Any) -> None:
    """Replace a function or a method, as no honest program may."""
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, value)


def taken(owner: Any, name: str) -> Any:
    """What stands there now."""
    return getattr(owner, name)


# ---- samples


def sample_dropped(session: Session) -> None:
    original = TensorSource.fetch

    def fetch(self: TensorSource, indices: Any, epoch: int, seed: int) -> Any:
        return original(self, indices[:-1] if len(indices) > 1 else indices, epoch, seed)

    if session.world.rank == 1:
        put(TensorSource, "fetch", fetch)


def sample_repeated(session: Session) -> None:
    original = TensorSource.fetch

    def fetch(self: TensorSource, indices: Any, epoch: int, seed: int) -> Any:
        return original(self, np.append(indices[:-1], indices[:1]), epoch, seed)

    if session.world.rank == 1:
        put(TensorSource, "fetch", fetch)


def grain_lost_between_workers(session: Session) -> None:
    original = taken(shoal.core.cursor, "shares")

    def shares(count: int, weights: Any) -> Any:
        return tuple(
            range(r.start, r.stop - (rank == 0 and len(r) > 1)) for rank, r in enumerate(original(count, weights))
        )

    put(shoal.core.cursor, "shares", shares)


def order_of_each_worker_its_own(session: Session) -> None:
    original = Loader.stream

    def stream(loader: Loader, *given: Any, **named: Any) -> Any:
        loader.order = WholeOrder(loader._seed + session.world.rank, len(loader.source))
        return original(loader, *given, **named)

    put(Loader, "stream", stream)


def order_the_same_in_every_epoch(session: Session) -> None:
    original = taken(shoal.core.order, "epoch_order")
    put(shoal.core.order, "epoch_order", lambda seed, epoch, *rest: original(seed, 0, *rest))


# ---- gradients


def gradient_counted_twice(session: Session) -> None:
    original = GradientAccumulator._add

    def add(self: GradientAccumulator, at: int, parameter: Any) -> None:
        if session.world.rank == 1 and at == 0:
            parameter.grad.mul_(2)
        original(self, at, parameter)

    put(GradientAccumulator, "_add", add)


def gradients_from_elsewhere_counted(session: Session) -> None:
    put(GradientAccumulator, "_arrived", GradientAccumulator._add)


def update_applied_twice(session: Session) -> None:
    original = ModelReplica.update

    def update(self: ModelReplica, learning_rates: Any, change: Any) -> None:
        original(self, learning_rates, change)
        original(self, learning_rates, change)

    put(ModelReplica, "update", update)


def weight_of_one_worker_off(session: Session) -> None:
    original = ShmReducer.open
    extra = 0.01 if session.world.rank == 1 else 0.0
    put(ShmReducer, "open", lambda self, weight: original(self, weight + extra))


def mean_of_means(session: Session) -> None:
    for kind in (_ModuleObjective, _FunctionObjective):
        _divide_at_once(kind)


def _divide_at_once(kind: Any) -> None:
    original = kind.__call__

    def call(self: Any, model: nn.Module, batch: Any) -> Any:
        loss = original(self, model, batch)
        return replace(loss, total=loss.total / loss.weight, weight=1.0) if loss.weight else loss

    kind.__call__ = call


def slice_not_summed(session: Session) -> None:
    original = ShmReducer._reduce

    def reduce(self: ShmReducer, bucket: int) -> None:
        if session.world.rank == 0 or bucket != 0 or self._step != 3:
            original(self, bucket)

    put(ShmReducer, "_reduce", reduce)


def sums_rounded_on_the_way(session: Session) -> None:
    original = taken(shoal.train.run, "Runtime")
    put(shoal.train.run, "Runtime", lambda **given: original(**{**given, "exact_sums": False}))


def unused_means_zero(session: Session) -> None:
    original = AllReduceReplica.reduce

    def reduce(self: AllReduceReplica, facts: list[float]) -> Any:
        result = original(self, facts)
        for _, parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return result

    put(AllReduceReplica, "reduce", reduce)


def clipped_before_the_sum(session: Session) -> None:
    original = GradientAccumulator._add

    def add(self: GradientAccumulator, at: int, parameter: Any) -> None:
        nn.utils.clip_grad_norm_([parameter], 0.05 * 50)  # of a sum over 50 samples
        original(self, at, parameter)

    put(GradientAccumulator, "_add", add)
    put(shoal.strategies.replica, "clip_gradients", lambda clip, parameters: None)


def learning_rate_times_workers(session: Session) -> None:
    original = Rates.at
    put(Rates, "at", lambda self, cursor: tuple(rate * session.world.size for rate in original(self, cursor)))


def schedule_one_step_late(session: Session) -> None:
    original = Rates.at
    put(Rates, "at", lambda self, cursor: original(self, replace(cursor, step=max(0, cursor.step - 1))))


def starting_weights_differ(session: Session) -> None:
    """Each worker builds its own weights, and nobody makes them equal."""
    original = Subject.model

    def model(self: Subject) -> nn.Module:
        built = original(self)
        with torch.no_grad():
            next(built.parameters()).add_(0.01 * session.world.rank)
        return built

    put(Subject, "model", model)
    put(AllReduceReplica, "_make_equal", lambda self: None)


# ---- what looks at a batch or draws


def statistics_not_combined(session: Session) -> None:
    def commit(self: RunningBuffers, change: torch.Tensor) -> None:
        own = torch.empty_like(change)
        self.changes(own)
        original(self, own)

    original = RunningBuffers.commit
    put(RunningBuffers, "commit", commit)


def statistics_move_with_each_grain(session: Session) -> None:
    put(RunningBuffers, "before_pass", lambda self: None)


def dropout_seeded_by_worker(session: Session) -> None:
    original = taken(shoal.strategies.replica, "step_seed")
    put(shoal.strategies.replica, "step_seed", lambda seed, step: original(seed + session.world.rank, step))


def dropout_the_same_in_every_step(session: Session) -> None:
    original = taken(shoal.strategies.replica, "step_seed")
    put(shoal.strategies.replica, "step_seed", lambda seed, step: original(seed, 0))


def dropout_by_place_in_the_pass(session: Session) -> None:
    _fill_with(lambda samples: np.arange(len(samples)))


def dropout_by_grain(session: Session) -> None:
    """As if all samples of a pass were numbered from its first one."""
    _fill_with(lambda samples: samples[0] + np.arange(len(samples)))


def _fill_with(change: Any) -> None:
    """Only in training: the trial before it would find out."""
    original = SampleDrawing.forward
    put(SampleDrawing, "forward", lambda self, samples, seed: original(self, change(samples), seed))
    trial = taken(shoal.train.draws, "_add_up")

    def honest(*given: Any) -> Any:
        with mock.patch.object(SampleDrawing, "forward", original):
            return trial(*given)

    put(shoal.train.draws, "_add_up", honest)


def every_call_of_dropout_the_same(session: Session) -> None:
    original = taken(shoal.strategies.drawing, "fill_by_sample")
    put(
        shoal.strategies.drawing,
        "fill_by_sample",
        lambda view, call, samples, keep: original(view, 12345, samples, keep),
    )


# ---- transactions


def step_with_nan_applied(session: Session) -> None:
    original = AllReduce.step

    def step(self: AllReduce, replica: AllReduceReplica, work: Any) -> Any:
        try:
            return original(self, replica, work)
        except NonFiniteLoss:
            replica.update(work.learning_rates, replica.buffer_change)
            raise

    put(AllReduce, "step", step)


def nan_not_noticed(session: Session) -> None:
    blind = SimpleNamespace(**{**vars(math), "isfinite": lambda value: True})
    put(shoal.strategies.replica, "math", blind)


def statistics_not_rolled_back(session: Session) -> None:
    put(RunningBuffers, "rollback", lambda self: None)


def coverage_of_what_was_handed_out(session: Session) -> None:
    original = Run.works

    def works(self: Run, epoch: int | None = None) -> Iterator[Work]:
        for work in original(self, epoch):
            order = epoch_order(self.config.seed, work.batch.cursor.epoch, len(self._spec.train))
            EpochCoverage.commit(self._coverage._epoch, order[work.batch.start : work.batch.stop])
            yield work

    put(Run, "works", works)
    put(CoverageRecord, "commit", lambda self, own, spans, order, readable: None)


# ---- evaluation


def evaluation_without_weights(session: Session) -> None:
    original = ShmGroup.all_reduce

    def all_reduce(self: ShmGroup, tensor: torch.Tensor, what: str) -> None:
        if "evaluation" in what:
            tensor[:, 0] /= tensor[:, 1]
            tensor[:, 1] = 1.0
        original(self, tensor, what)

    put(ShmGroup, "all_reduce", all_reduce)


def evaluation_in_training_mode(session: Session) -> None:
    original = ModelReplica.evaluate

    def evaluate(self: ModelReplica, batch: Any) -> Any:
        self.module.eval = self.module.train  # type: ignore[method-assign]
        return original(self, batch)

    put(ModelReplica, "evaluate", evaluate)


# ---- checkpoints


def _saved_with(change: Any) -> None:
    original = Saver.save

    def save(self: Saver, *given: Any) -> None:
        *rest, ledger = given
        original(self, *rest, replace(ledger, cursor=change(ledger.cursor)))

    put(Saver, "save", save)


def cursor_one_step_ahead(session: Session) -> None:
    _saved_with(lambda c: replace(c, batch=c.batch + 1, step=c.step + 1, samples=c.samples + 100))


def cursor_one_batch_behind(session: Session) -> None:
    _saved_with(lambda c: replace(c, batch=c.batch - 1))


def optimizer_not_restored(session: Session) -> None:
    put(shoal.strategies.replica, "load_optimizer", lambda *given: None)


def coverage_not_restored(session: Session) -> None:
    original = CoverageRecord.restore
    put(CoverageRecord, "restore", lambda self, counts, finished, first: original(self, 0 * counts, finished, first))


# ---- batch normalisation over the whole batch


def statistics_of_each_worker_its_own(session: Session) -> None:
    original = Exchange.sums

    def sums(self: Exchange, kind: Kind, call: int, count: int, numbers: Any) -> Any:
        counts, everyone = original(self, kind, call, count, numbers)
        others = [rank for rank in range(self.size) if rank != self.rank]
        counts[others], everyone[others] = 0, 0.0
        return (counts, everyone) if count > 1 else original(self, kind, call, count, numbers)

    put(Exchange, "sums", sums)


def gradient_through_statistics_not_combined(session: Session) -> None:
    original = Exchange.sums

    def sums(self: Exchange, kind: Kind, call: int, count: int, numbers: Any) -> Any:
        counts, everyone = original(self, kind, call, count, numbers)
        if kind is Kind.BACKWARD:
            everyone[:] = np.asarray(numbers) / self.size
        return counts, everyone

    put(Exchange, "sums", sums)


def running_variance_biased(session: Session) -> None:
    put(shoal.strategies.batch_statistics, "_unbiased", lambda squares, total: squares / total)


def values_counted_wrong(session: Session) -> None:
    original = taken(shoal.strategies.batch_statistics, "_moments")

    def moments(given: Any) -> Any:
        count, numbers = original(given)
        return count + 1, numbers

    if session.world.rank == 1:
        put(shoal.strategies.batch_statistics, "_moments", moments)


def mean_of_workers_means(session: Session) -> None:
    original = taken(shoal.strategies.batch_statistics, "combine")

    def combine(counts: Any, everyone: Any) -> Any:
        total, _, _ = original(counts, everyone)
        _, mean, squares = original([1 if count else 0 for count in counts], everyone)
        return total, mean, squares * total / max(1, sum(1 for count in counts if count))

    put(shoal.strategies.batch_statistics, "combine", combine)


def worker_without_samples_counted(session: Session) -> None:
    original = Exchange._meet

    def meet(self: Exchange, mine: Row) -> Any:
        return original(self, replace(mine, count=5) if mine.kind is Kind.ABSENT else mine)

    put(Exchange, "_meet", meet)


def running_statistics_moved_by_every_worker(session: Session) -> None:
    put(BatchStatistics, "share", lambda self, otherwise: 1.0)
