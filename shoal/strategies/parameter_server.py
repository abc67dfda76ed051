"""Training with parameter servers: workers compute gradients, servers hold the parameters and apply the updates.

With BSP every step is one transaction of all workers: each stages the gradient sum of its part, the group agrees, the
commit adds the parts up, divides once and updates. That is the mathematics of `allreduce`. With SSP and ASP workers
take whole global batches as tasks, each a transaction of its own: see `tasks`.

In teams, workers that are close to each other add their gradients up first, and only their leader speaks with servers.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import astuple
from typing import Any

from shoal.comm.codecs.choose import CodecChoice
from shoal.core.config import AsynchronousSettings
from shoal.core.consistency import ASP, BSP, Consistency
from shoal.core.errors import NonFiniteLoss, PeerLost
from shoal.core.staleness import Aging
from shoal.core.state import ShardedState
from shoal.core.teams import Rule
from shoal.store.errors import StateLost, StoreRefused
from shoal.store.operations import Shaping
from shoal.strategies.base import Needs, Runtime, Span, StepResult, Strategy, Sums, Work
from shoal.strategies.likeness import NOTHING, compare
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program
from shoal.strategies.replica import committed_indices, span_of
from shoal.strategies.served import ServedReplica, scale_for_norm
from shoal.strategies.tasks import TaskReplica

_REMEMBERED = 32  # commits that servers keep for whoever has to find out what was done


class ParameterServer(Strategy[ServedReplica]):
    """`consistency` says how far workers, or teams of workers, may be apart."""

    name = "parameter-server"

    def __init__(self, consistency: Consistency | None = None, team: Rule = 1) -> None:
        self.consistency: Consistency = consistency if consistency is not None else BSP()
        self._team = team
        in_step = isinstance(self.consistency, BSP)
        needs = Needs(
            servers=True, survives=True, leases=not in_step, statistics=in_step, whole=True, apart=not in_step
        )
        self.needs = needs  # type: ignore[misc]

    def bind(self, program: Program, runtime: Runtime) -> ServedReplica:
        if isinstance(self.consistency, BSP):
            return ServedReplica(program, runtime, self._team)
        return TaskReplica(program, runtime, self.consistency, self._team, self._manner(runtime))

    def _manner(self, runtime: Runtime) -> AsynchronousSettings:
        """Updates count as they are, however old."""
        return AsynchronousSettings(damping=False)

    def reach(self, replica: ServedReplica) -> int:
        return replica.reach if isinstance(replica, TaskReplica) else 1

    def aging(self, replica: ServedReplica) -> Aging | None:
        return replica.aging if isinstance(replica, TaskReplica) else None

    def known_limits(self, replica: ServedReplica) -> list[str]:
        lazy = replica.updated_by_rows()
        if not lazy:
            return []
        kind = type(replica.optimizer).__name__
        return [
            f"{', '.join(lazy)} {'is a sparse table' if len(lazy) == 1 else 'are sparse tables'}: on servers {kind} "
            "steps on the rows that a batch touches, and on no others, which under allreduce move on by momentum and "
            "decay; use sparse=False if that matters"
        ]

    def step(self, replica: ServedReplica, work: Work) -> StepResult:
        if isinstance(replica, TaskReplica):
            return replica.act(work)
        step, chosen = work.batch.cursor.step, replica.coding.choice
        if not replica.met:  # whether a step was committed in an earlier view, all know or none
            replica.agree({}, "beginning in a view")
            replica.met = True
        done = next((one for one in replica.recalled if one.get("step") == step), None)
        if done is not None:  # whoever committed it is gone: nobody has told the group
            return self._finish(replica, done, work, chosen)
        words = self._stage(replica, work)
        compare([tuple(word["seen"]) for word in words], replica.runtime.view, step)
        bad = [rank for rank, word in enumerate(words) if word["bad"]]
        if bad:
            replica.discard()
            replica.coding.discard()
            if replica.runtime.world.is_first:
                with suppress(StateLost):  # then nothing is left to be dropped
                    replica.kv.drop(replica.transaction(str(step)))
            raise NonFiniteLoss(step, bad)
        record = {
            "run": replica.run,
            "step": step,
            "loss": [sum(word["loss"][0] for word in words), sum(word["loss"][1] for word in words)],
            "spans": [word["span"] for word in words],
            "stop": any(word["stop"] for word in words),
            "change": any(word["change"] for word in words),
            "save": any(word["save"] for word in words),
            "timings": [word["timings"] for word in words],
        }
        if replica.team.leads:
            try:
                self._commit(replica, record, work)
            except StateLost:  # what the group agreed on is gone, which it will find out at its next step
                replica.lost = True
        return self._finish(replica, record, work, chosen)

    def _stage(self, replica: ServedReplica, work: Work) -> list[dict[str, Any]]:
        """Compute this worker's part, leave it with the servers, and tell. Returns everyone's word."""
        runtime, step = replica.runtime, work.batch.cursor.step
        divided = replica.program.objective.divided
        replica.begin(replica.transaction(str(step)), float(work.batch.samples) if divided else 1.0)
        seen = replica.likeness.see(step) if runtime.compares else NOTHING
        gradient = replica.compute(work, before_last=replica.arm)
        runtime.control.enter(runtime.world.seat, step, "reduce")
        bad, backward_s = replica.is_nonfinite(gradient), replica.computed_s("backward") - replica.overlapped_s
        with runtime.spans("reduce"):
            replica.sum_up(gradient, work)
            replica.stage_rest()
            timings = {"data": work.data_s, "forward": replica.computed_s("forward"), "backward": backward_s}
            return replica.agree(
                {
                    "loss": [gradient.loss_sum if math.isfinite(gradient.loss_sum) else 0.0, gradient.weight],
                    "bad": bad,
                    "stop": work.stop,
                    "change": work.change,
                    "save": work.save,
                    "span": list(astuple(span_of(work))),
                    "timings": timings,
                    "seen": list(seen),
                },
                "agreeing on a step",
            )

    def _commit(self, replica: ServedReplica, record: dict[str, Any], work: Work) -> None:
        runtime, step = replica.runtime, work.batch.cursor.step
        runtime.control.enter(runtime.world.seat, step, "update")
        weight = record["loss"][1]
        divided = replica.program.objective.divided and weight != 0
        clip, parts = runtime.clip, replica.parts
        shaping = Shaping(weight if divided else 1.0, clip.value, limits=clip.weights)
        transaction = replica.transaction(str(step))
        with runtime.spans("update"):
            if clip.norm is not None:
                squares = self._squares(replica, transaction, parts, shaping)
                if squares is None:
                    return
                shaping = Shaping(shaping.divisor, clip.value, scale_for_norm(squares, clip.norm), limits=clip.weights)
            told = json.dumps(record).encode()
            done = replica.kv.commit(transaction, parts, rates=work.learning_rates, shaping=shaping, record=told)
            if runtime.world.is_first and done.number % _REMEMBERED == 0:
                replica.kv.forget(done.number - 2)

    def _squares(self, replica: ServedReplica, transaction: str, parts: range, shaping: Shaping) -> float | None:
        """The squared norm of the whole gradient; None where a quicker worker has committed it meanwhile."""
        try:
            return replica.kv.norms(transaction, parts, shaping)
        except StoreRefused as no:
            if no.reason != "missing part":
                raise
        # with what scale it was committed the first server knows: it goes on to the others as it was there
        replica.kv.settle()
        if transaction not in {one.transaction for one in replica.kv.records()}:
            raise PeerLost(f"what was staged as {transaction} has been dropped: this worker is out of the view")
        return None

    def _finish(
        self, replica: ServedReplica, record: dict[str, Any], work: Work, chosen: CodecChoice | None
    ) -> StepResult:
        """The step is committed: read what it has made of the model."""
        replica.forget_gradients()
        replica.coding.commit(replica.waited_s)
        with replica.runtime.spans("reduce"):
            replica.pull()
        replica.recalled = []
        return StepResult(
            record["loss"][0],
            record["loss"][1],
            committed_indices(work),
            record["stop"],
            tuple(record["timings"]),
            replica.take_bytes_sent(),
            record["change"],
            tuple(Span(*map(int, span)) for span in record["spans"]),
            record["save"],
            replica.coding.choice if replica.coding.choice is not chosen else None,
        )

    def discard(self, replica: ServedReplica) -> None:
        replica.discard()

    def reconfigure(self, replica: ServedReplica, program: Program, runtime: Runtime) -> ServedReplica:
        replica.attach(runtime)
        return replica

    def live_state(self, replica: ServedReplica) -> ShardedState:
        return replica.live_state()

    def evaluate(self, replica: ServedReplica, batch: Batch) -> Sums:
        return replica.evaluate(batch)

    def state(self, replica: ServedReplica) -> ShardedState:
        found, residuals = [ShardedState()], replica.residuals()
        if replica.runtime.world.is_first:
            replica.unless_lost(lambda: found.append(replica.state()))
        replica.agree({}, "asking whether the servers had everything")
        pieces = {**found[-1].pieces, **residuals} if replica.runtime.world.is_first else {}
        return ShardedState(pieces, found[-1].values)

    def load(self, replica: ServedReplica, state: ShardedState) -> None:
        replica.load(state)

    def initial_learning_rates(self, replica: ServedReplica) -> tuple[float, ...]:
        return replica.initial_learning_rates

    def close(self, replica: ServedReplica) -> None:
        replica.close()


class Asynchronous(ParameterServer):
    """ASP with what makes it converge: an update counts the less the older it is; with `asynchronous.mixing`, workers
    keep weights of their own, which they and the servers draw towards each other (elastic averaging)."""

    name = "async"

    def __init__(self, team: Rule = 1) -> None:
        super().__init__(ASP(), team)

    def _manner(self, runtime: Runtime) -> AsynchronousSettings:
        return runtime.asynchronous
