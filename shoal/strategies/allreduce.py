"""Synchronous data parallelism: every worker has the whole model, gradients are summed while backward still runs.

Gradients are copied into flat buckets, in the reverse order of the parameters, which is about the order in which
backward finishes them. A bucket is handed to the group's reducer when its last gradient is final, so its sum is under
way while earlier layers are still computed. Together with the sums travel the loss's weight, by which the group
divides once, and the facts on which all workers must agree before anyone updates.

With a codec buckets travel coded, and each worker keeps what its codec has left out for its next steps (see
`ErrorFeedback`). A worker that dies takes along what it had left out: part of the gradients of samples that count as
seen. A worker that takes over the state of another begins without any. Checkpoints hold the sum over all workers, with
which the first worker goes on.
"""

from __future__ import annotations

import math
from dataclasses import astuple

from torch import Tensor

from shoal.comm.codecs.choose import CodecChoice
from shoal.core.errors import NonFiniteLoss
from shoal.core.state import Piece, ShardedState
from shoal.strategies.base import Needs, Runtime, Span, StepResult, Strategy, Sums, Work
from shoal.strategies.buckets import GradientBuckets, residual_pieces
from shoal.strategies.coding import Coding
from shoal.strategies.gradient_accumulator import GradientAccumulator
from shoal.strategies.likeness import NOTHING, Likeness, compare
from shoal.strategies.objective import Batch, LossSum
from shoal.strategies.program import Program
from shoal.strategies.replica import Gradient, ModelReplica, committed_indices, span_of

_AGREED = ("loss_sum", "weight", "nonfinite", "stop", "change")  # added up over the group
_SPAN = ("start", "stop", "digest")  # of the samples that a worker computed

_TIMED = ("data", "forward", "backward", "reduce")
_SEEN = ("checksum", "near")  # of a piece of the model, now and then
_FACTS = (*_AGREED, *_SPAN, *_TIMED, *_SEEN)


class AllReduceReplica(ModelReplica):
    """A model whose gradients go through buckets."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        super().__init__(program, runtime)
        if not runtime.alike:
            self._make_equal()
        self._ordered = list(reversed(self.parameters))  # about as backward finishes them
        self.last_reduce_s = 0.0  # of the step before: this one's is known only when its facts have gone
        self._coding = Coding(runtime.codec, runtime.world.device)
        self._residuals: dict[str, Piece] = {}  # that were loaded, until there is a codec for them
        self._gradients = GradientAccumulator(self._ordered, self.dense)
        self._attach(runtime)

    def _attach(self, runtime: Runtime) -> None:
        """Take part in a group. Collective."""
        self.runtime = runtime
        self._coding.meet(runtime.group)
        self.meet(runtime)
        self.likeness = Likeness(self.module, runtime.view, runtime.world.device)
        self._make_buckets()

    def _make_buckets(self) -> None:
        """Place the gradients into buckets of the group's reducer, or of one that codes them."""
        self._buckets = GradientBuckets(
            self._ordered,
            self.buffers.numel,
            len(_FACTS) + len(self._ordered),
            self.runtime,
            self._coding.feedback,
            self.program.objective.divided,
        )
        self._gradients.attach(self._buckets, len(_FACTS))
        self.buffer_change = self._buckets.statistics
        if self._residuals and self._buckets.are_coded:
            self._buckets.load_residuals(self._residuals)
            self._residuals = {}

    def reattach(self, runtime: Runtime) -> None:
        """Take part in another group; the old one's memory is let go."""
        self._let_go()
        self._attach(runtime)

    def _let_go(self) -> None:
        """Nothing that the user may look at is in the group's memory any more."""
        for _, parameter in self._ordered:
            parameter.grad = None
        self._buckets.views.clear()

    def _make_equal(self) -> None:
        """Every worker starts from the first worker's parameters and buffers."""
        for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
            self.runtime.group.broadcast(tensor.data, 0, f"copying {name} from worker 0")

    @property
    def codec_choice(self) -> CodecChoice | None:
        """What was chosen with ``auto``, and why; None before that, and without ``auto``."""
        return self._coding.choice

    @property
    def bytes_per_step(self) -> int:
        """What this worker sends in a step."""
        return self._buckets.bytes_per_step

    def begin(self, work: Work) -> None:
        """A step begins; with ``auto``, one of the first is where the codec is chosen. Collective."""
        self._samples = work.batch.samples
        if self._coding.due(self.runtime.group):
            with self.runtime.spans("codec"):
                self._coding.decide(self.runtime.group, self._buckets.gradients, self._buckets.payload_bytes)
            if self._coding.feedback is not None:
                self._make_buckets()

    def arm(self, gradient: Gradient) -> None:
        """The last pass goes backward now: gradients become final one after the other."""
        self._gradients.arm(gradient.weight, self._samples)

    def backward(self, loss: LossSum) -> None:
        with self._gradients.counting():
            super().backward(loss)

    @property
    def overlapped_s(self) -> float:
        """How much of the backward passes of this step went into sums."""
        return self._gradients.seconds

    def reduce(self, facts: list[float]) -> Tensor:
        """Hand over what is left, wait for the sums, and put them into the parameters. Returns all workers' facts."""
        everyone = self._gradients.finish(facts, self.buffers.changes)
        for (_, parameter), sums, use in zip(self._ordered, self._buckets.sums(), self._gradients.used, strict=True):
            # a parameter that no sample used has no gradient, as in one process: decay and momentum leave it alone;
            # but what a codec had left out of an earlier one may come now
            late = not use and self._buckets.are_coded and bool(sums.any())
            parameter.grad = sums if use or late else None
        self._gradients.begin()
        return everyone

    def commit(self, compute_s: float, wait_s: float) -> None:
        """The step is part of the model; it has taken so long."""
        self._coding.commit()
        if self._coding.measuring(self.runtime.group):
            self._coding.note(compute_s, wait_s)

    def rollback(self) -> None:
        """The step's loss is not a number: no statistic of it is left, and nothing that was coded."""
        self.buffers.rollback()
        self._coding.discard()

    def discard(self) -> None:
        super().discard()
        self._coding.discard()

    def residuals(self) -> dict[str, Piece]:
        """What the codecs of all workers have left out so far, by parameter. Collective."""
        return self._buckets.residuals()

    def load(self, state: ShardedState) -> None:
        super().load(state)
        self._residuals = residual_pieces(state.pieces) if self.runtime.world.is_first else {}
        if self._buckets.are_coded:
            self._buckets.load_residuals(self._residuals)
            self._residuals = {}

    def close(self) -> None:
        """Take the hooks off the user's model and its gradients out of the group's memory."""
        self._gradients.close()
        self._let_go()


class AllReduce(Strategy[AllReduceReplica]):
    """Every worker holds the model; gradients are summed over all of them at each step."""

    name = "allreduce"
    needs = Needs(survives=True, statistics=True, whole=True)

    def bind(self, program: Program, runtime: Runtime) -> AllReduceReplica:
        return AllReduceReplica(program, runtime)

    def step(self, replica: AllReduceReplica, work: Work) -> StepResult:
        runtime, step, chosen = replica.runtime, work.batch.cursor.step, replica.codec_choice
        replica.begin(work)
        seen = replica.likeness.see(step) if runtime.compares else NOTHING
        gradient = replica.compute(work, before_last=replica.arm)
        runtime.control.enter(runtime.world.seat, step, "reduce")
        overlapped_s = replica.overlapped_s
        with runtime.spans("reduce"):
            facts = replica.reduce(
                [
                    gradient.loss_sum if math.isfinite(gradient.loss_sum) else 0.0,
                    gradient.weight,
                    float(replica.is_nonfinite(gradient)),
                    float(work.stop),
                    float(work.change),
                    *map(float, astuple(span_of(work))),
                    work.data_s,
                    replica.computed_s("forward"),
                    replica.computed_s("backward") - overlapped_s,
                    replica.last_reduce_s,
                    *seen,
                ]
            )
        replica.last_reduce_s = overlapped_s + runtime.spans.recent("reduce")
        loss_sum, weight, nonfinite, stop, change = facts[:, : len(_AGREED)].sum(dim=0).tolist()
        if nonfinite:
            replica.rollback()
            raise NonFiniteLoss(step, facts[:, 2].nonzero().flatten().tolist())
        told = facts[:, len(_AGREED) :].tolist()
        if seen is not NOTHING:
            compare([(row[-2], row[-1]) for row in told], runtime.view, step)
        runtime.control.enter(runtime.world.seat, step, "update")
        with runtime.spans("update"):
            replica.update(work.learning_rates, replica.buffer_change)
        computed_s = replica.computed_s("forward") + replica.computed_s("backward")
        replica.commit(computed_s, runtime.spans.recent("reduce"))
        return StepResult(
            loss_sum,
            weight,
            committed_indices(work),
            bool(stop),
            tuple(dict(zip(_TIMED, row[len(_SPAN) : -len(_SEEN)], strict=True)) for row in told),
            replica.bytes_per_step,
            bool(change),
            tuple(Span(*map(int, row[: len(_SPAN)])) for row in told),
            codec=replica.codec_choice if replica.codec_choice is not chosen else None,
        )

    def discard(self, replica: AllReduceReplica) -> None:
        replica.discard()

    def reconfigure(self, replica: AllReduceReplica, program: Program, runtime: Runtime) -> AllReduceReplica:
        replica.reattach(runtime)
        return replica

    def live_state(self, replica: AllReduceReplica) -> ShardedState:
        """Without what codecs have left out: that belongs to each worker. Who takes this state over begins with none of
        it, so what its own codec had left out before is lost, as is that of a worker that died."""
        return replica.live_state()

    def evaluate(self, replica: AllReduceReplica, batch: Batch) -> Sums:
        return replica.evaluate(batch)

    def state(self, replica: AllReduceReplica) -> ShardedState:
        residuals = replica.residuals()
        if not replica.runtime.world.is_first:
            return ShardedState()
        state = replica.state()
        return ShardedState({**state.pieces, **residuals}, state.values)

    def load(self, replica: AllReduceReplica, state: ShardedState) -> None:
        replica.load(state)

    def initial_learning_rates(self, replica: AllReduceReplica) -> tuple[float, ...]:
        return replica.initial_learning_rates

    def close(self, replica: AllReduceReplica) -> None:
        replica.close()
