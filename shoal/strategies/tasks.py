"""Asynchronous training: each global batch of a stretch is a task, leased by one worker, committed by its own update.

A worker leases a task, reads the parameters, computes the gradient of the batch, and commits it: update, task and
record take effect together on the servers. Nobody waits for anybody but as far as the consistency says. When all tasks
of the stretch are committed the workers meet, and the records of the commits say what has shaped the model.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from shoal.core.consistency import Consistency
from shoal.core.cursor import GlobalBatch
from shoal.core.errors import NonFiniteLoss, PeerLost
from shoal.core.state import ShardedState
from shoal.store.answers import NothingLeft, Wait
from shoal.store.errors import StateLost, StoreRefused
from shoal.store.operations import Shaping, Task
from shoal.strategies.base import Runtime, Span, StepResult, Work
from shoal.strategies.program import Program
from shoal.strategies.replica import clip_gradients, committed_indices, span_of
from shoal.strategies.served import ServedReplica

_LOOK_S = 0.25  # how long a wait for a task lasts before this worker looks around
_STRETCH_S = 5.0  # about how long workers go without meeting
_FIRST, _MOST = 8, 4096  # tasks of a stretch
_STEP_BITS = 32  # of a stretch's number; above them stand the run and how often its servers have gone back


class TaskReplica(ServedReplica):
    """One worker's part in asynchronous training."""

    def __init__(self, program: Program, runtime: Runtime, consistency: Consistency) -> None:
        self.consistency, self._mixing = consistency, runtime.asynchronous.mixing
        self.reach = _FIRST
        super().__init__(program, runtime, local=self._mixing is not None)

    @property
    def me(self) -> str:
        return self.runtime.view.members[self.runtime.world.rank].key

    def act(self, work: Work) -> StepResult:
        """Do tasks until all of the stretch are committed. Collective at its beginning and end."""
        batches, began = [batch for batch, _ in work.stretch], time.perf_counter()
        first = batches[0].cursor.step
        self.agree({}, "beginning a stretch")
        assert self.runtime.fleet is not None
        high = (self.runtime.fleet.number << 10 | self.runtime.fit) << 8 | self.generation
        self._stretch = high << _STEP_BITS | first
        failed, own = False, []
        try:
            self.kv.open(
                self._stretch, len(batches), self.consistency, tuple(m.key for m in self.runtime.view.members), True
            )
            self.kv.join(self.me)
            while (task := self._lease()) is not None:
                indices = self._do(task, batches, work)
                if indices is None:
                    failed = True
                    self.kv.release(self.me)  # let the others come to the same end
                    break
                own.append(indices)
        except StateLost:
            self.lost = True
        stop, change = work.wishes() if work.wishes is not None else (work.stop, work.change)
        word = {
            "failed": failed,
            "stop": stop,
            "change": change,
            "save": work.save,
            "seconds": time.perf_counter() - began,
            "records": self._records() if self.runtime.world.is_first and not failed else [],
        }
        words = self.agree(word, "ending a stretch")
        bad = [rank for rank, one in enumerate(words) if one["failed"]]
        if bad:
            self.discard()
            raise NonFiniteLoss(first, bad)
        return self._finish(words, batches, own)

    def _lease(self) -> Task | None:
        """The next task of this worker, None when all are committed."""
        view, control = self.runtime.view, self.runtime.control
        while True:
            if control.broken(view.number):
                raise PeerLost(f"view {view.number} was broken during a stretch")
            answer = self.kv.lease(self.me, deadline_s=_LOOK_S)
            if isinstance(answer, NothingLeft):
                return None
            if isinstance(answer, Wait):
                control.tick(self.runtime.world.seat)  # it waits for others, it does not hang
                continue
            return answer

    def _do(self, task: Task, batches: list[GlobalBatch], work: Work) -> Any:
        """Do one task; returns its samples, None where the loss is not finite."""
        runtime, batch = self.runtime, batches[task.number]
        rates = work.stretch[task.number][1]
        with runtime.spans("reduce"):
            self.download()
        self._wear_own()
        version = self.version
        assert work.stream is not None, "a strategy that leases is given a stream"
        with runtime.spans("data"):
            passes = next(iter(work.stream([(batch, batch.grains)])))
        step = Work(batch, passes, rates)
        self.forget_gradients()
        gradient = self.compute(step, before_last=lambda gradient: None)
        if not math.isfinite(gradient.loss_sum):
            return None
        divided = self.program.objective.divided and gradient.weight != 0
        self._divide(gradient.weight if divided else 1.0)
        record = {
            "run": self.run,
            "stretch": task.stretch,
            "loss": [gradient.loss_sum, gradient.weight],
            "span": [*asdict(span_of(step)).values()],
            "batch": task.number,
        }
        transaction = self.transaction(f"{task.stretch}/{task.number}")
        runtime.control.enter(runtime.world.seat, batch.cursor.step, "update")
        given = self._local_step(rates) if self._mixing is not None else self.gradients()
        with runtime.spans("reduce"):
            self.kv.stage(transaction, 0, given).result()
            try:
                self.kv.commit(
                    transaction, (0,), rates=rates, shaping=Shaping(limits=runtime.clip.weights),
                    record=json.dumps(record).encode(), read_version=version,
                    damping=runtime.asynchronous.damping and self._mixing is None, task=task,
                )  # fmt: skip
            except StoreRefused as no:
                if no.reason != "board":
                    raise
                raise PeerLost(f"task {task.number} was given to another worker: this one is out of the view") from None
        self.forget_gradients()
        return committed_indices(step)

    @torch.no_grad()
    def _divide(self, divisor: float) -> None:
        """Put the gradient of the batch, divided and clipped, into the parameters."""
        for name, parameter in self._keys.items():
            if self.runtime.exact_sums and name in self._sums:
                parameter.grad = (self._sums.pop(name) / divisor).to(parameter.dtype)
            elif parameter.grad is not None:
                parameter.grad.mul_(1.0 / divisor)
        clip_gradients(self.runtime.clip, [p for p in self._keys.values() if p.grad is not None])

    def gradients(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, parameter in self._keys.items():
            if parameter.grad is not None:
                given[name] = self._as_given(name, parameter.grad.detach())
        return {**given, **self._buffer_change()}

    @torch.no_grad()
    def _wear_own(self) -> None:
        """Compute with weights of this worker's own, where it has any."""
        for name, values in self._own.items():
            self._keys[name].copy_(values)

    @torch.no_grad()
    def _local_step(self, rates: tuple[float, ...]) -> dict[str, Any]:
        """Elastic averaging: the optimizer steps here, from this worker's own weights; those and the central ones then
        move towards each other by the mixing factor."""
        assert self._mixing is not None
        self._set_rates(rates)
        self.optimizer.step()
        given: dict[str, Any] = {}
        for name, parameter in self._keys.items():
            apart = (parameter - torch.from_numpy(self._copies[name])).mul_(self._mixing)
            self._own[name] = parameter.detach() - apart
            given[name] = self._as_given(name, apart)
        return {**given, **self._buffer_change()}

    def _records(self) -> list[dict[str, Any]]:
        """What the servers have recorded of the commits of this stretch."""
        try:
            records = [json.loads(one.commit.record) for one in self.kv.committed() if one.commit.record]
            return [record for record in records if record.get("stretch") == self._stretch]
        except StateLost:
            self.lost = True
            return []

    def _finish(self, words: list[dict[str, Any]], batches: list[GlobalBatch], own: list[Any]) -> StepResult:
        records = sorted(words[0]["records"], key=lambda record: int(record["batch"]))
        try:
            self.download()
            if self.runtime.world.is_first:
                self.kv.forget(max((one.number for one in self.kv.committed()), default=0))
        except StateLost:
            self.lost = True
        seconds = max(float(word["seconds"]) for word in words)
        fitting = math.ceil(len(batches) * _STRETCH_S / max(seconds, 1e-3))
        self.reach = min(max(fitting, 1), 4 * max(self.reach, 1), _MOST)
        return StepResult(
            sum(record["loss"][0] for record in records),
            sum(record["loss"][1] for record in records),
            np.concatenate(own) if own else np.empty(0, dtype=np.int64),
            any(word["stop"] for word in words),
            tuple({"computing": float(word["seconds"])} for word in words),
            self.take_bytes_sent(),
            any(word["change"] for word in words),
            tuple(Span(*map(int, record["span"])) for record in records),
            any(word["save"] for word in words),
        )

    def live_state(self) -> ShardedState:
        state = super().live_state()
        return ShardedState(state.pieces, {**state.values, "reach": self.reach})

    def load(self, state: ShardedState) -> None:
        self._own.clear()
        super().load(state)
        self.reach = int(state.values.get("reach", _FIRST))
