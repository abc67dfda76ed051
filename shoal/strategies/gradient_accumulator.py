"""The gradients of one step as backward finishes them: added up over passes and over a group, in buckets that can be
handed on one after the other while earlier layers are still computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from shoal.core.errors import ConfigError
from shoal.strategies.buckets import GradientBuckets


class GradientAccumulator:
    """Takes the gradients of `parameters`, given by name in the order in which backward finishes them, as `dense` gives
    each. `on_final` is called within backward when a bucket has become final on this worker.

    One step: `begin`; each pass with its backward within `counting`; `arm` before the backward of the last one;
    `finish`. What computes gradients at any other time (a callback between steps, the loss of another model that goes
    through this one) leaves them in ``parameter.grad``, as in plain PyTorch, and in no step: whoever begins one clears
    that first. Gradients of parameters that nobody has used are not among the sums."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        dense: Callable[[Tensor], Tensor],
        on_final: Callable[[], None] = lambda: None,
    ) -> None:
        self._parameters, self._dense, self._on_final = list(parameters), dense, on_final
        self._counting = False
        self.seconds = 0.0  # of this step: spent within backward, on handing buckets on
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda p, at=at: self._arrived(at, p))  # type: ignore[no-untyped-call]
            for at, (_, parameter) in enumerate(self._parameters)
        ]

    def attach(self, buckets: GradientBuckets, facts: int) -> None:
        """Add up in `buckets` from now on, with so many facts of each worker."""
        self._buckets, self._facts = buckets, facts
        self._of_bucket: list[list[int]] = [[] for _ in buckets.members]
        for at, bucket in enumerate(buckets.bucket_of):
            self._of_bucket[bucket].append(at)
        self.begin()

    def begin(self) -> None:
        """A step begins, with no gradients."""
        # time within backward depends on who comes when, not on the samples
        self._armed, self.seconds = False, 0.0
        self._pending = list(self._buckets.members)
        self.used = [False] * len(self._parameters)  # some pass of this step gave a gradient; after `finish`, anyone's
        self._final = [False] * len(self._parameters)  # no pass of this step will add to it

    def arm(self, weight: float, samples: int = 0) -> None:
        """The last pass goes backward now: gradients become final one after the other. `weight` is that of this
        worker's samples, `samples` the number of those of the global batch."""
        self._buckets.open(weight, samples)
        self._armed = True

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A pass of this step goes backward: its gradients count, and what its forward has left in the parameters."""
        self._counting = True
        try:
            yield
        finally:
            self._counting = False
        for at, (_, parameter) in enumerate(self._parameters):
            if parameter.grad is not None:
                self._add(at, parameter)

    def _arrived(self, at: int, parameter: Tensor) -> None:
        """Backward has computed a gradient of parameter `at`: a pass of this step, or someone else."""
        if self._counting:
            self._add(at, parameter)

    def _add(self, at: int, parameter: Tensor) -> None:
        """Add the gradient of parameter `at` that one pass has left in it."""
        if self._final[at]:
            raise ConfigError(
                "a gradient was computed twice in one backward pass (re-entrant activation checkpointing does that): "
                "use torch.utils.checkpoint with use_reentrant=False"
            )
        grad = self._dense(parameter)
        if self.used[at]:
            self._buckets.views[at].add_(grad)
        else:
            self._buckets.views[at].copy_(grad)
            self.used[at] = True
        parameter.grad = None  # its memory serves the next layer while it is still in the cache
        if self._armed:
            self._finalise(at)

    def _finalise(self, at: int) -> None:
        self._final[at] = True
        bucket = self._buckets.bucket_of[at]
        self._pending[bucket] -= 1
        if self._pending[bucket] == 0:
            began = time.perf_counter()
            self._buckets.reducer.ready(bucket)
            self._on_final()
            self.seconds += time.perf_counter() - began

    @property
    def count(self) -> int:
        """How many buckets there are."""
        return len(self._buckets.members)

    def is_summed(self, bucket: int) -> bool:
        """Whether a bucket can be handed on before `finish`: all of it is there, and this worker has used all of it, so
        that it does not matter whether others have."""
        if self._pending[bucket] or not self._buckets.reducer.reduced(bucket):
            return False
        return all(self.used[at] for at in self._of_bucket[bucket])

    def finish(self, facts: Sequence[float], changes: Callable[[Tensor], None]) -> Tensor:
        """Wait for the sums of all buckets and of the running statistics, which `changes` writes. Returns the facts of
        all members. Collective."""
        for at, final in enumerate(self._final):
            if not final:
                if not self.used[at]:
                    self._buckets.views[at].zero_()
                self._finalise(at)
        changes(self._buckets.statistics)
        self._buckets.reducer.ready(self.count)
        told = torch.tensor([*facts, *map(float, self.used)], dtype=torch.float64)
        everyone = self._buckets.reducer.finish(told)
        self.used = [bool(use) for use in everyone[:, self._facts :].sum(dim=0).tolist()]
        return everyone[:, : self._facts]

    def sums(self, bucket: int | None = None) -> Iterator[tuple[str, Tensor]]:
        """The gradients of one bucket, if there is one, or of all, as sums by name. They may be changed until the next
        step."""
        chosen = self._of_bucket[bucket : bucket + 1] if bucket is not None else self._of_bucket
        for at in chain.from_iterable(chosen):
            if self.used[at]:
                yield self._parameters[at][0], self._buckets.views[at]

    @property
    def statistics(self) -> Tensor:
        """The change of the running statistics."""
        return self._buckets.statistics

    def close(self) -> None:
        """Take the hooks off the user's model. May be called twice."""
        for hook in self._hooks:
            hook.remove()
