"""Synchronous data parallelism: every worker has the whole model, gradients are summed while backward still runs.

Gradients are copied into flat buckets, in the reverse order of the parameters, which is about the order in which
backward finishes them. A bucket is handed to the group's reducer when its last gradient is final, so its sum is under
way while earlier layers are still computed. Together with the sums travel the loss's weight, by which the group
divides once, and the facts on which all workers must agree before anyone updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor, nn

from shoal.comm.group import BucketSpec
from shoal.core.errors import ConfigError, NonFiniteLoss
from shoal.core.state import ShardedState
from shoal.strategies.base import Needs, Runtime, Span, StepResult, Strategy, Sums, Work
from shoal.strategies.memory import view_like
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program
from shoal.strategies.replica import Gradient, ModelReplica, committed_indices, refuse_sparse, span_of

_AGREED = ("loss_sum", "weight", "nonfinite", "stop", "change")  # added up over the group
_SPAN = ("start", "stop", "digest")  # of the samples that a worker computed

_TIMED = ("data", "forward", "backward", "reduce")
_FACTS = (*_AGREED, *_SPAN, *_TIMED)
_FIRST_BUCKET_BYTES = 1 << 20  # small, so that reducing starts early


@dataclass(frozen=True)
class Slot:
    """Where a parameter's gradient lies: elements ``[start, stop)`` of bucket `bucket`."""

    bucket: int
    start: int
    stop: int


def fuse(sizes: Sequence[tuple[int, torch.dtype]], bucket_bytes: int) -> tuple[list[Slot], list[BucketSpec]]:
    """Place gradients, given by (elements, dtype) in the order in which they become final, into buckets. Pure.

    A bucket holds one dtype; it is closed when it has reached `bucket_bytes`, the first one earlier.
    """
    slots: list[Slot] = []
    specs: list[BucketSpec] = []
    open_bucket: dict[torch.dtype, int] = {}
    for numel, dtype in sizes:
        if dtype not in open_bucket:
            open_bucket[dtype] = len(specs)
            specs.append(BucketSpec(0, dtype))
        bucket = open_bucket[dtype]
        start = specs[bucket].numel
        slots.append(Slot(bucket, start, start + numel))
        specs[bucket] = BucketSpec(start + numel, dtype)
        limit = min(_FIRST_BUCKET_BYTES, bucket_bytes) if bucket == 0 else bucket_bytes
        if specs[bucket].numel * dtype.itemsize >= limit:
            del open_bucket[dtype]
    return slots, specs


class AllReduceReplica(ModelReplica):
    """A model whose gradients go through buckets. With exact sums the buckets are wider than the parameters: float64
    holds the sum of a few float32 values without rounding, so neither the order of grains nor the number of workers
    leaves a trace in it."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        super().__init__(program, runtime)
        if not runtime.alike:
            self._make_equal()
        self._order: list[nn.Parameter] = [parameter for _, parameter in reversed(self.parameters)]
        self.last_reduce_s = 0.0  # of the step before: this one's is known only when its facts have gone
        self._narrow = [torch.empty_like(p) for p in self._order] if runtime.exact_sums else None
        self._attach(runtime)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda p, at=at: self._add(at, p))  # type: ignore[no-untyped-call]
            for at, parameter in enumerate(self._order)
        ]

    def _attach(self, runtime: Runtime) -> None:
        """Place the gradients into buckets of the group's reducer."""
        self.runtime = runtime
        kinds = [torch.float64 if runtime.exact_sums else p.dtype for p in self._order]
        slots, specs = fuse(
            [(p.numel(), kind) for p, kind in zip(self._order, kinds, strict=True)], runtime.bucket_bytes
        )
        if not self.program.objective.divided:
            specs = [BucketSpec(spec.numel, spec.dtype, divided=False) for spec in specs]
        specs.append(BucketSpec(self.buffers.numel, torch.float64, divided=False))
        size = runtime.group.size
        payload = sum(spec.numel * spec.dtype.itemsize for spec in specs)
        self.bytes_per_step = 2 * payload * (size - 1) // size  # a sum scattered, then gathered
        self._reducer = runtime.group.reducer(specs, len(_FACTS) + len(self._order))
        self.buffer_change = self._reducer.buffers[-1]
        self._views = [
            view_like(self._reducer.buffers[slot.bucket][slot.start : slot.stop], p)
            for slot, p in zip(slots, self._order, strict=True)
        ]
        self._bucket_of = [slot.bucket for slot in slots]
        self._members = [self._bucket_of.count(bucket) for bucket in range(len(specs) - 1)]
        self._begin_step()

    def _begin_step(self) -> None:
        self._armed = False
        self._pending = list(self._members)
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

    def arm(self, gradient: Gradient) -> None:
        """The last pass goes backward now: gradients become final one after the other."""
        self._reducer.open(gradient.weight)
        self._armed = True

    def _add(self, at: int, parameter: Tensor) -> None:
        """Backward has computed the gradient of parameter `at` for one pass."""
        grad = parameter.grad
        assert grad is not None
        if self._final[at]:
            raise ConfigError(
                "a gradient was computed twice in one backward pass (re-entrant activation checkpointing does that): "
                "use torch.utils.checkpoint with use_reentrant=False"
            )
        refuse_sparse(grad)
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
        bucket = self._bucket_of[at]
        self._pending[bucket] -= 1
        if self._pending[bucket] == 0:
            self._reducer.ready(bucket)

    def reduce(self, facts: list[float]) -> Tensor:
        """Hand over what is left, wait for the sums, and put them into the parameters. Returns all workers' facts."""
        for at, final in enumerate(self._final):
            if not final:
                if not self._used[at]:
                    self._views[at].zero_()
                self._finalise(at)
        self.buffers.changes(self.buffer_change)
        self._reducer.ready(len(self._members))
        everyone = self._reducer.finish(torch.tensor([*facts, *map(float, self._used)], dtype=torch.float64))
        anyone_used = everyone[:, len(_FACTS) :].sum(dim=0).tolist()
        if self._narrow is not None:
            torch._foreach_copy_(self._narrow, self._views)
        for parameter, sums, use in zip(self._order, self._narrow or self._views, anyone_used, strict=True):
            # a parameter that no sample used has no gradient, as in one process: decay and momentum leave it alone
            parameter.grad = sums if use else None
        self._begin_step()
        return everyone[:, : len(_FACTS)]

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
        runtime, step = replica.runtime, work.batch.cursor.step
        gradient = replica.compute(work, before_last=replica.arm)
        runtime.control.enter(runtime.world.seat, step, "reduce")
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
                    runtime.spans.recent("backward"),
                    replica.last_reduce_s,
                ]
            )
        replica.last_reduce_s = runtime.spans.recent("reduce")
        loss_sum, weight, nonfinite, stop, change = facts[:, : len(_AGREED)].sum(dim=0).tolist()
        if nonfinite:
            replica.buffers.rollback()
            raise NonFiniteLoss(step, facts[:, 2].nonzero().flatten().tolist())
        runtime.control.enter(runtime.world.seat, step, "update")
        with runtime.spans("update"):
            replica.update(work.learning_rates, replica.buffer_change)
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
        )

    def discard(self, replica: AllReduceReplica) -> None:
        replica.discard()

    def reconfigure(self, replica: AllReduceReplica, program: Program, runtime: Runtime) -> AllReduceReplica:
        replica.reattach(runtime)
        return replica

    def live_state(self, replica: AllReduceReplica) -> ShardedState:
        return replica.live_state()

    def evaluate(self, replica: AllReduceReplica, batch: Batch) -> Sums:
        return replica.evaluate(batch)

    def state(self, replica: AllReduceReplica) -> ShardedState:
        return replica.state() if replica.runtime.world.is_first else ShardedState()

    def load(self, replica: AllReduceReplica, state: ShardedState) -> None:
        replica.load(state)

    def initial_learning_rates(self, replica: AllReduceReplica) -> tuple[float, ...]:
        return replica.initial_learning_rates

    def close(self, replica: AllReduceReplica) -> None:
        replica.close()
