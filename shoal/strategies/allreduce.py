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
import time
from dataclasses import astuple

import torch
from torch import Tensor, nn

from shoal.comm.codecs.choose import CodecChoice
from shoal.core.errors import ConfigError, NonFiniteLoss
from shoal.core.state import Piece, ShardedState
from shoal.strategies.base import Needs, Runtime, Span, StepResult, Strategy, Sums, Work
from shoal.strategies.buckets import GradientBuckets, residual_pieces
from shoal.strategies.coding import Coding
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program
from shoal.strategies.replica import Gradient, ModelReplica, committed_indices, span_of

_AGREED = ("loss_sum", "weight", "nonfinite", "stop", "change")  # added up over the group
_SPAN = ("start", "stop", "digest")  # of the samples that a worker computed

_TIMED = ("data", "forward", "backward", "reduce")
_FACTS = (*_AGREED, *_SPAN, *_TIMED)


class AllReduceReplica(ModelReplica):
    """A model whose gradients go through buckets."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        super().__init__(program, runtime)
        if not runtime.alike:
            self._make_equal()
        self._order: list[nn.Parameter] = [parameter for _, parameter in reversed(self.parameters)]
        self.last_reduce_s = 0.0  # of the step before: this one's is known only when its facts have gone
        self._coding = Coding(runtime.codec, runtime.world.device)
        self._residuals: dict[str, Piece] = {}  # that were loaded, until there is a codec for them
        self._attach(runtime)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda p, at=at: self._add(at, p))  # type: ignore[no-untyped-call]
            for at, parameter in enumerate(self._order)
        ]

    def _attach(self, runtime: Runtime) -> None:
        """Take part in a group. Collective."""
        self.runtime = runtime
        self._coding.meet(runtime.group)
        self._make_buckets()

    def _make_buckets(self) -> None:
        """Place the gradients into buckets of the group's reducer, or of one that codes them."""
        self._buckets = GradientBuckets(
            list(reversed(self.parameters)),
            self.buffers.numel,
            len(_FACTS) + len(self._order),
            self.runtime,
            self._coding.feedback,
            self.program.objective.divided,
        )
        self._views, self.buffer_change = self._buckets.views, self._buckets.statistics
        self._begin_step()
        if self._residuals and self._buckets.are_coded:
            self._buckets.load_residuals(self._residuals)
            self._residuals = {}

    def _begin_step(self) -> None:
        self._armed = False
        self.overlapped_s = 0.0  # spent on sums within backward: it depends on who comes when, not on the samples
        self._pending = list(self._buckets.members)
        self._used = [False] * len(self._order)  # some pass of this step gave a gradient
        self._final = [False] * len(self._order)  # no pass of this step will add to it

    def reattach(self, runtime: Runtime) -> None:
        """Take part in another group; the old one's memory is let go."""
        for parameter in self._order:
            parameter.grad = None
        self._views.clear()
        self._attach(runtime)

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
        self._buckets.open(gradient.weight, self._samples)
        self._armed = True

    def _add(self, at: int, parameter: Tensor) -> None:
        """Backward has computed the gradient of parameter `at` for one pass."""
        assert parameter.grad is not None
        if self._final[at]:
            raise ConfigError(
                "a gradient was computed twice in one backward pass (re-entrant activation checkpointing does that): "
                "use torch.utils.checkpoint with use_reentrant=False"
            )
        grad = self.dense(parameter)
        if self._used[at]:
            self._views[at].add_(grad)
        else:
            self._views[at].copy_(grad)
            self._used[at] = True
        parameter.grad = None  # its memory serves the next layer while it is still in the cache
        if self._armed:
            self._finalise(at)

    def _finalise(self, at: int) -> None:
        self._final[at] = True
        bucket = self._buckets.bucket_of[at]
        self._pending[bucket] -= 1
        if self._pending[bucket] == 0:
            begin = time.perf_counter()
            self._buckets.reducer.ready(bucket)
            self.overlapped_s += time.perf_counter() - begin

    def reduce(self, facts: list[float]) -> Tensor:
        """Hand over what is left, wait for the sums, and put them into the parameters. Returns all workers' facts."""
        for at, final in enumerate(self._final):
            if not final:
                if not self._used[at]:
                    self._views[at].zero_()
                self._finalise(at)
        reducer, narrow = self._buckets.reducer, self._buckets.narrow
        self.buffers.changes(self.buffer_change)
        reducer.ready(len(self._buckets.members))
        everyone = reducer.finish(torch.tensor([*facts, *map(float, self._used)], dtype=torch.float64))
        anyone_used = everyone[:, len(_FACTS) :].sum(dim=0).tolist()
        if narrow is not None:
            torch._foreach_copy_(narrow, self._views)
        for parameter, sums, use in zip(self._order, narrow or self._views, anyone_used, strict=True):
            # a parameter that no sample used has no gradient, as in one process: decay and momentum leave it alone;
            # but what a codec had left out of an earlier one may come now
            late = not use and self._buckets.are_coded and bool(sums.any())
            parameter.grad = sums if use or late else None
        self._begin_step()
        return everyone[:, : len(_FACTS)]

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
        for hook in self._hooks:
            hook.remove()
        for parameter in self._order:
            parameter.grad = None
        self._views.clear()


class AllReduce(Strategy[AllReduceReplica]):
    """Every worker holds the model; gradients are summed over all of them at each step."""

    name = "allreduce"
    needs = Needs(survives=True)

    def bind(self, program: Program, runtime: Runtime) -> AllReduceReplica:
        return AllReduceReplica(program, runtime)

    def step(self, replica: AllReduceReplica, work: Work) -> StepResult:
        runtime, step, chosen = replica.runtime, work.batch.cursor.step, replica.codec_choice
        replica.begin(work)
        gradient = replica.compute(work, before_last=replica.arm)
        runtime.control.enter(runtime.world.seat, step, "reduce")
        overlapped_s = replica.overlapped_s
        with runtime.spans("reduce"):
            facts = replica.reduce(
                [
                    gradient.loss_sum if math.isfinite(gradient.loss_sum) else 0.0,
                    gradient.weight,
                    float(not math.isfinite(gradient.loss_sum)),
                    float(work.stop),
                    float(work.change),
                    *map(float, astuple(span_of(work))),
                    work.data_s,
                    runtime.spans.recent("forward"),
                    runtime.spans.recent("backward") - overlapped_s,
                    replica.last_reduce_s,
                ]
            )
        replica.last_reduce_s = overlapped_s + runtime.spans.recent("reduce")
        loss_sum, weight, nonfinite, stop, change = facts[:, : len(_AGREED)].sum(dim=0).tolist()
        if nonfinite:
            replica.rollback()
            raise NonFiniteLoss(step, facts[:, 2].nonzero().flatten().tolist())
        runtime.control.enter(runtime.world.seat, step, "update")
        with runtime.spans("update"):
            replica.update(work.learning_rates, replica.buffer_change)
        computed_s = runtime.spans.recent("forward") + runtime.spans.recent("backward")
        replica.commit(computed_s, runtime.spans.recent("reduce"))
        told = facts[:, len(_AGREED) :].tolist()
        return StepResult(
            loss_sum,
            weight,
            committed_indices(work),
            bool(stop),
            tuple(dict(zip(_TIMED, row[len(_SPAN) :], strict=True)) for row in told),
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
