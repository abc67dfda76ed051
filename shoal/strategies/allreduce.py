"""Synchronous data parallelism: every worker has the whole model, gradients are summed while backward still runs.

Gradients are copied into flat buckets, in the reverse order of the parameters, which is about the order in which
backward finishes them. A bucket is handed to the group's reducer when its last gradient is final, so its sum is under
way while earlier layers are still computed. Together with the sums travel the loss's weight, by which the group
divides once, and the facts on which all workers must agree before anyone updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.comm.group import BucketSpec
from shoal.core.errors import ConfigError, NonFiniteLoss
from shoal.core.state import ShardedState
from shoal.strategies.base import Runtime, StepResult, Strategy, Sums, Work
from shoal.strategies.objective import Batch
from shoal.strategies.program import Program
from shoal.strategies.replica import Gradient, ModelReplica, committed_indices

_FACTS = ("loss_sum", "weight", "nonfinite", "stop", "data", "forward", "backward", "reduce")
_TIMED = ("data", "forward", "backward", "reduce")
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
    """A model whose gradients go through buckets."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        super().__init__(program, runtime)
        self._make_equal()
        self._order: list[nn.Parameter] = [parameter for _, parameter in reversed(self.parameters)]
        slots, specs = fuse([(p.numel(), p.dtype) for p in self._order], runtime.bucket_bytes)
        if not program.objective.divided:
            specs = [BucketSpec(spec.numel, spec.dtype, divided=False) for spec in specs]
        specs.append(BucketSpec(self.buffers.numel, torch.float32, divided=False))
        size = runtime.group.size
        payload = sum(spec.numel * spec.dtype.itemsize for spec in specs)
        self.bytes_per_step = 2 * payload * (size - 1) // size  # a sum scattered, then gathered
        self._reducer = runtime.group.reducer(specs, len(_FACTS) + len(self._order))
        buffers = self._reducer.buffers
        self._buffer_change = buffers[-1]
        self._views = [
            buffers[slot.bucket][slot.start : slot.stop].view(p.shape)
            for slot, p in zip(slots, self._order, strict=True)
        ]
        self._bucket_of = [slot.bucket for slot in slots]
        self._members = [self._bucket_of.count(bucket) for bucket in range(len(specs) - 1)]
        self.last_reduce_s = 0.0  # of the step before: this one's is known only when its facts have gone
        self._armed = False
        self._pending: list[int] = []
        self._filled = [False] * len(self._order)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda p, at=at: self._final(at, p))  # type: ignore[misc]
            for at, parameter in enumerate(self._order)
        ]

    def _make_equal(self) -> None:
        """Every worker starts from the first worker's parameters and buffers."""
        for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
            self.runtime.group.broadcast(tensor.data, 0, f"copying {name} from worker 0")

    def arm(self, gradient: Gradient) -> None:
        """From now on gradients become final: open the step with the weight of this worker's samples."""
        self._pending = list(self._members)
        self._filled = [False] * len(self._order)
        self._reducer.open(gradient.weight)
        self._armed = True

    def _final(self, at: int, parameter: Tensor) -> None:
        """Backward has finished the gradient of parameter `at`."""
        if not self._armed:
            return
        grad = parameter.grad
        assert grad is not None
        if self._filled[at]:
            raise ConfigError(
                "a gradient was computed twice in one backward pass (re-entrant activation checkpointing does that): "
                "use torch.utils.checkpoint with use_reentrant=False"
            )
        self._fill(at, grad)
        parameter.grad = None  # its memory serves the next layer while it is still in the cache

    def _fill(self, at: int, grad: Tensor | None) -> None:
        view = self._views[at]
        if grad is None:
            view.zero_()
        elif grad.is_sparse:
            raise ConfigError("the model makes sparse gradients, which this version does not reduce")
        else:
            view.copy_(grad)
        self._filled[at] = True
        bucket = self._bucket_of[at]
        self._pending[bucket] -= 1
        if self._pending[bucket] == 0:
            self._reducer.ready(bucket)

    def reduce(self, facts: list[float]) -> Tensor:
        """Hand over what is left, wait for the sums, and put them into the parameters. Returns all workers' facts."""
        self._armed = False
        used = list(self._filled)
        for at, parameter in enumerate(self._order):
            if not self._filled[at]:
                used[at] = parameter.grad is not None
                self._fill(at, parameter.grad)
        self.buffers.changes(self._buffer_change)
        self._reducer.ready(len(self._members))
        everyone = self._reducer.finish(torch.tensor([*facts, *map(float, used)], dtype=torch.float64))
        anyone_used = everyone[:, len(_FACTS) :].sum(dim=0).tolist()
        for parameter, view, use in zip(self._order, self._views, anyone_used, strict=True):
            # a parameter that no sample used has no gradient, as in one process: decay and momentum leave it alone
            parameter.grad = view if use else None
        return everyone[:, : len(_FACTS)]

    @property
    def buffer_change(self) -> Tensor:
        return self._buffer_change

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

    def bind(self, program: Program, runtime: Runtime) -> AllReduceReplica:
        return AllReduceReplica(program, runtime)

    def step(self, replica: AllReduceReplica, work: Work) -> StepResult:
        runtime, step = replica.runtime, work.batch.cursor.step
        gradient = replica.compute(work, before_last=replica.arm)
        runtime.control.enter(runtime.world.rank, step, "reduce")
        with runtime.spans("reduce"):
            facts = replica.reduce(
                [
                    gradient.loss_sum if math.isfinite(gradient.loss_sum) else 0.0,
                    gradient.weight,
                    float(not math.isfinite(gradient.loss_sum)),
                    float(work.stop),
                    work.data_s,
                    runtime.spans.recent("forward"),
                    runtime.spans.recent("backward"),
                    replica.last_reduce_s,
                ]
            )
        replica.last_reduce_s = runtime.spans.recent("reduce")
        loss_sum, weight, nonfinite, stop = facts[:, :4].sum(dim=0).tolist()
        if nonfinite:
            replica.buffers.rollback()
            raise NonFiniteLoss(step, facts[:, 2].nonzero().flatten().tolist())
        runtime.control.enter(runtime.world.rank, step, "update")
        with runtime.spans("update"):
            replica.update(work.learning_rates, replica.buffer_change)
        timings = tuple(dict(zip(_TIMED, row, strict=True)) for row in facts[:, 4:].tolist())
        return StepResult(loss_sum, weight, committed_indices(work), bool(stop), timings, replica.bytes_per_step)

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
