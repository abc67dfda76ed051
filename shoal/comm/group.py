"""A group of workers that compute together: what every backend promises.

All calls are collective: every member makes the same calls in the same order, from one thread. Sums are taken in an
order that depends only on the size of the group, so the same group gives the same bits. Every call ends within the
group's deadline: `CollectiveTimeout` names the workers that did not come, `PeerLost` says that one of them is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BucketSpec:
    """One flat buffer of gradients. `divided`: its sum is divided by the group's total weight."""

    numel: int
    dtype: torch.dtype
    divided: bool = True


class BucketReducer(ABC):
    """Sums buckets over the group while the caller is still computing later ones.

    One step: `open`, then for each bucket in any order: write `buffers[i]`, call `ready(i)` once; then `finish`.
    After `finish` every member's buffers hold the same bits: the sum over the group, divided where the spec says so.
    The caller must not touch a buffer between its `ready` and `finish`; it may read and write it from `finish`
    until its next `ready`.
    """

    buffers: Sequence[Tensor]

    @abstractmethod
    def open(self, weight: float) -> None:
        """Begin a step. The sum of all members' weights is the divisor (no division where it is zero)."""

    @abstractmethod
    def ready(self, bucket: int) -> None:
        """This member's part of `bucket` is written. Does some reducing if others are ready too; never waits."""

    def reduced(self, bucket: int) -> bool:
        """Whether `bucket`, which is ready, holds its sum already and may be read. Never waits. A reducer that cannot
        tell before `finish` says no."""
        return False

    @abstractmethod
    def finish(self, facts: Tensor) -> Tensor:
        """Wait until all buckets are reduced. `facts` (float64, 1-d, the same length everywhere and always) is
        exchanged along the way: returns those of all members, one row each, in rank order."""


class Group(ABC):
    """Members `0 .. size-1`, of which this process is `rank`."""

    rank: int
    size: int
    backend: str  # as shown in the header of a run

    @abstractmethod
    def all_reduce(self, tensor: Tensor, what: str) -> None:
        """Sum `tensor` over the group in place. `what` names the operation in an error."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, source: int, what: str) -> None:
        """Overwrite `tensor` everywhere by that of `source`."""

    @abstractmethod
    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        """Return every member's payload, in rank order, to every member."""

    def start_gather(self, parts: Sequence[Tensor], own: Tensor, what: str) -> Callable[[], None]:
        """Begin to gather `own` (bytes: 1-d, uint8, in host memory, equally long on every member) of all members into
        `parts`, in rank order. The function that is returned waits until it is done; until then the caller must touch
        none of them. All members start in the same order and wait in the same order. By default nothing is sent before
        the wait."""

        def wait() -> None:
            for part, payload in zip(parts, self.gather_bytes(own.numpy().tobytes(), what), strict=True):
                if payload:
                    part.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))

        return wait

    @abstractmethod
    def reducer(self, buckets: Sequence[BucketSpec], facts: int) -> BucketReducer:
        """Make the reducer for these buckets; `facts` is the length of the vector that `finish` exchanges."""

    def bytes_to_sum(self, payload_bytes: int) -> int:
        """What this member sends when the group sums so much: it is scattered, then gathered."""
        return 2 * payload_bytes * (self.size - 1) // self.size

    def coding(self) -> tuple[Group | None, int]:
        """Between whom codecs are used: the group of those that code, None for a member that does not, and how many
        they are."""
        return self, self.size

    def barrier(self, what: str) -> None:
        """Return once every member has called it."""
        self.gather_bytes(b"", what)

    def interrupt(self) -> None:  # noqa: B027 - only some backends need it
        """Free whoever waits in this group, with `PeerLost`, once its view is broken. May be called from any thread, at
        any time, also after `close`. Not collective. Backends whose waits see by themselves that the view is broken do
        nothing."""

    @abstractmethod
    def close(self) -> None:
        """Give back memory and sockets. Not collective; may be called twice."""
