"""Asynchronous training: each global batch of a stretch is a task, leased by one team, committed by its own update.

The leader of a team leases a task and reads the parameters, the team computes the gradient of the batch, each member
its share, and the leader commits it: update, task and record take effect together on the servers. No team waits for
another but as far as the consistency says. A worker on its own is a team of one.

Now and then all workers meet, and the records of the commits say what has shaped the model. They do not meet while one
of them is not to be seen: the stretch is longer than it need be, and the first team's leader closes it early, when the
tasks of some seconds are done and every team has committed something lately.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.comm.codecs.choose import CodecChoice
from shoal.core.config import AsynchronousSettings
from shoal.core.consistency import Consistency
from shoal.core.errors import NonFiniteLoss, PeerLost
from shoal.core.staleness import Aging
from shoal.core.state import ShardedState
from shoal.core.teams import Rule
from shoal.store.answers import NothingLeft, Record, Wait
from shoal.store.checking import Given
from shoal.store.errors import StoreRefused
from shoal.store.operations import Shaping, Task
from shoal.strategies import fused
from shoal.strategies.base import Runtime, Span, StepResult, Work
from shoal.strategies.program import Program
from shoal.strategies.replica import clip_gradients, clip_weights, committed_indices
from shoal.strategies.served import Done, ServedReplica

_LOOK_S = 0.25  # how long a wait for a task lasts before this worker looks around
_STRETCH_S = 5.0  # about how long workers go without meeting
_FIRST, _MOST = 8, 4096  # tasks between two meetings
_LONGER = 4  # times as many are there to be done while somebody is not to be seen
_LATELY = 4  # tasks a team
_NOT_YET = -1  # instead of the number of a task
_STEP_BITS = 32  # of a stretch's number; above them stands the era: tasks of an earlier one are nobody's


class TaskReplica(ServedReplica):
    """One worker's part in asynchronous training. `manner` says what is done about updates that are old."""

    def __init__(
        self, program: Program, runtime: Runtime, consistency: Consistency, team: Rule, manner: AsynchronousSettings
    ) -> None:
        self.consistency, self._mixing, self._damping = consistency, manner.mixing, manner.damping
        self._tasks = _FIRST  # after which the workers meet
        self._lead = 0  # of this team when it got its task
        self._recorded = 0  # the number of the last commit whose record was read
        self._own: dict[str, Tensor] = {}  # weights of this team's own, where it has any
        super().__init__(program, runtime, team, local=self._mixing is not None)

    @property
    def me(self) -> str:
        """Under what name the team leases."""
        return self.team.members[0].key

    @property
    def reach(self) -> int:
        """How many tasks a stretch has, if it is not closed before."""
        return self._tasks * _LONGER

    @property
    def aging(self) -> Aging | None:
        """What its updates come to when they are old. Nothing with elastic averaging: no gradient is late there."""
        if self._mixing is not None:
            return None
        momentum = max(float(group.get("momentum", 0.0)) for group in self.optimizer.param_groups)
        return Aging(self._damping, momentum, len(self.team.all))

    def act(self, work: Work) -> StepResult:
        """Do tasks until all that the stretch comes to have are committed. Collective at its beginning and end."""
        began = time.perf_counter()
        first, chosen = work.batch.cursor.step, self.coding.choice
        self.agree({}, "beginning a stretch")
        self._stretch = self.era << _STEP_BITS | first
        self._over = self._failed = False  # a loss is not finite, in the team or here
        if self.team.leads:
            self.unless_lost(lambda: self._open(len(work.stretch)))
        probed = work.probe() if work.probe is not None else None
        own = []
        while (number := self._next()) is not None:
            own.append(self._do(number, work))
        stop, change = work.wishes() if work.wishes is not None else (work.stop, work.change)
        word = {
            "failed": self._failed,
            "stop": stop,
            "change": change,
            "save": work.save,
            "seconds": time.perf_counter() - began,
            "probed": probed,
            "records": self._records() if self.runtime.world.is_first and not self._failed else [],
        }
        words = self.agree(word, "ending a stretch")
        bad = [rank for rank, one in enumerate(words) if one["failed"]]
        if bad:
            self.discard()
            raise NonFiniteLoss(first, bad)
        records = sorted(words[0]["records"], key=lambda record: int(record["batch"]))
        return self._finish(words, records, own, chosen)

    def _open(self, count: int) -> None:
        self.kv.open(self._stretch, count, self.consistency, tuple(team[0].key for team in self.team.all), True)
        self.kv.join(self.me)
        self._looked: tuple[int, dict[str, int]] | None = None  # at which task, and how far each team was then
        self._closed = False

    def _next(self) -> int | None:
        """The next task of this team; None when all are committed, or the team cannot go on. Collective within it."""
        seat, control = self.runtime.world.seat, self.runtime.control
        while True:
            word = json.dumps(self._lease() if self.team.leads else None).encode()
            task = json.loads(self.team.hear(word, "the leader's next task"))
            if task != _NOT_YET:
                return None if task is None else int(task)
            control.tick(seat)  # it waits for others, it does not hang

    def _lease(self) -> int | None:
        view, answers = self.runtime.view, list[Any]()
        if self.runtime.control.broken(view.number):
            raise PeerLost(f"view {view.number} was broken during a stretch")
        if self._over:
            return None
        self.unless_lost(lambda: answers.append(self.kv.lease(self.me, deadline_s=_LOOK_S)))
        if self.lost or isinstance(answers[0], NothingLeft):
            return None
        if isinstance(answers[0], Wait):
            return _NOT_YET
        self._lead = int(answers[0].lead)
        number = int(answers[0].number)
        if self.runtime.world.is_first and not self._closed:
            self.unless_lost(lambda: self._close(number))
        return number

    def _close(self, number: int) -> None:
        """The first team is about to do this task: let it be among the last, if all teams are there to meet."""
        lately = _LATELY * len(self.team.all)
        if number < self._tasks - lately:
            return
        clocks = {team: clock for team, clock in self.kv.progress().clocks.items() if team != self.me}
        if self._looked is None or number - self._looked[0] > 2 * lately:
            self._looked = number, clocks
        elif number >= self._tasks and all(clock > self._looked[1].get(team, -1) for team, clock in clocks.items()):
            self.kv.end_early(self._stretch)
            self._closed = True

    def _do(self, number: int, work: Work) -> npt.NDArray[np.int64]:
        """Do this worker's share of a task; returns its samples. Collective within the team."""
        runtime, (batch, rates) = self.runtime, work.stretch[number]
        with runtime.spans("reduce"):
            self._read()
        version, grains = self.version, batch.share(self.team.rank, (1.0,) * self.team.size)
        assert work.stream is not None, "a strategy that leases is given a stream"
        with runtime.spans("data"):
            passes = next(iter(work.stream([(batch, grains)]))) if grains else []
        step = Work(batch, passes, rates)
        self.begin(None)
        gradient = self.compute(step, before_last=self.arm)
        with runtime.spans("reduce"):
            done = self.sum_up(gradient, step)
        runtime.control.enter(runtime.world.seat, batch.cursor.step, "update")
        if any(one.bad for one in done):
            self._over, self._failed = True, not math.isfinite(gradient.loss_sum)
            if self.team.leads:  # let the others come to the same end
                self.unless_lost(self._give_up)
        elif self.team.leads:
            self.unless_lost(lambda: self._commit(Task(self._stretch, number, self.me), done, rates, version))
        self.forget_gradients()
        return committed_indices(step)

    def _give_up(self) -> None:
        self.kv.release(self.me)
        self.kv.end_early(self._stretch)

    def _read(self) -> None:
        """The team begins its task with what the servers hold, or with its own weights, where it has any."""
        if self.team.leads:
            self.unless_lost(self.download)
            self._wear_own()
        self.hand_down()

    def _commit(self, task: Task, done: list[Done], rates: tuple[float, ...], version: int) -> None:
        runtime, weight = self.runtime, sum(one.weight for one in done)
        self._divide(weight if self.program.objective.divided and weight != 0 else 1.0)
        record = {
            "run": self.run,
            "stretch": task.stretch,
            "loss": [sum(one.loss_sum for one in done), weight],
            "spans": [astuple(one.span) for one in done if one.span.stop > one.span.start],
            "batch": task.number,
            "lead": self._lead,
        }
        transaction = self.transaction(f"{task.stretch}/{task.number}")
        with runtime.spans("reduce"):
            self.begin_coding(transaction)
            self.stage(transaction, 0, lambda: self._local_step(rates) if self._mixing is not None else self._given())
            self.wait_staged()
            if self.lost:
                return
            try:
                self.kv.commit(
                    transaction, (0,), rates=rates if self._mixing is None else (),
                    shaping=Shaping(limits=runtime.clip.weights),
                    record=json.dumps(record).encode(), read_version=version,
                    damping=self._damping and self._mixing is None, task=task,
                )  # fmt: skip
            except StoreRefused as no:
                if no.reason != "board":
                    raise
                raise PeerLost(f"task {task.number} was given to another worker: this one is out of the view") from None
            self.coding.commit(self.waited_s)

    @torch.no_grad()
    def _divide(self, divisor: float) -> None:
        """Put the gradient of the batch, divided and clipped, into the parameters."""
        for name, sums in (*self._arriving.sums(), *self._rows.items()):
            parameter = self._keys[name]
            parameter.grad = (
                (sums / divisor).to(parameter.dtype) if self.runtime.exact_sums else sums.mul_(1.0 / divisor)
            )
        clip_gradients(self.runtime.clip, [p for p in self._keys.values() if p.grad is not None])

    def _given(self) -> dict[str, Given]:
        gradients = {name: parameter.grad for name, parameter in self._keys.items()}
        given = {name: self._as_given(name, grad) for name, grad in gradients.items() if grad is not None}
        return {**given, **self.buffer_change()}

    @torch.no_grad()
    def _wear_own(self) -> None:
        """Compute with weights of this team's own, where it has any."""
        for name, values in self._own.items():
            self._keys[name].copy_(values)

    @torch.no_grad()
    def _local_step(self, rates: tuple[float, ...]) -> dict[str, Given]:
        """Elastic averaging: the optimizer steps here, from this team's own weights; those and the central ones then
        move towards each other by the mixing factor."""
        assert self._mixing is not None
        self._set_rates(rates)
        for parameter in self._keys.values():
            if parameter.grad is not None:  # optimizers are given dense ones, here as under allreduce
                parameter.grad = self.dense(parameter)
        fused.step(self.optimizer)
        clip_weights(self.runtime.clip, list(self._keys.values()))
        given: dict[str, Given] = {}
        for name, parameter in self._keys.items():
            apart = (parameter - torch.from_numpy(self._copies[name])).mul_(self._mixing)
            self._own[name] = parameter.detach() - apart
            given[name] = self._as_given(name, apart)
        return {**given, **self.buffer_change()}

    def _records(self) -> list[dict[str, Any]]:
        """What the servers have recorded of the commits of this stretch, with how old each update was."""
        commits = list[Record]()
        self.unless_lost(lambda: commits.extend(self.kv.records(era=self.kv.era)))
        self._recorded = max((one.number for one in commits), default=0)
        records = [{**json.loads(one.record), "age": one.staleness} for one in commits if one.record]
        return [record for record in records if record.get("stretch") == self._stretch]

    def _finish(
        self, words: list[dict[str, Any]], records: list[dict[str, Any]], own: list[npt.NDArray[np.int64]],
        chosen: CodecChoice | None,
    ) -> StepResult:  # fmt: skip
        self.pull()
        if self.runtime.world.is_first:
            self.unless_lost(lambda: self.kv.forget(self._recorded))
        seconds = max(float(word["seconds"]) for word in words)
        probed = [word["probed"] for word in words]
        fitting = math.ceil(len(records) * _STRETCH_S / max(seconds, 1e-3))
        self._tasks = min(max(fitting, 1), 4 * self._tasks, _MOST)
        return StepResult(
            sum(record["loss"][0] for record in records),
            sum(record["loss"][1] for record in records),
            np.concatenate(own) if own else np.empty(0, dtype=np.int64),
            any(word["stop"] for word in words),
            tuple({"computing": float(word["seconds"])} for word in words),
            self.take_bytes_sent(),
            any(word["change"] for word in words),
            tuple(Span(*map(int, span)) for record in records for span in record["spans"]),
            any(word["save"] for word in words),
            self.coding.choice if self.coding.choice is not chosen else None,
            batches=len(records),
            staleness=tuple(int(record["age"]) for record in records),
            lead=max((int(record["lead"]) for record in records), default=0),
            probed=tuple(map(float, probed)) if None not in probed else (),
        )

    def live_state(self) -> ShardedState:
        state = super().live_state()
        return ShardedState(state.pieces, {**state.values, "tasks": self._tasks})

    def load(self, state: ShardedState) -> None:
        self._own.clear()
        super().load(state)
        self._tasks = int(state.values.get("tasks", _FIRST))
