"""Codecs in a group of two levels: sums within a team are exact, and only leaders code, for each other.

What a team has summed is coded by its leader, once, however many members the team has; what a codec leaves out of it is
the leader's to send later. A member that is no leader any more gives what it had left out, as one, to its team's sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from shoal.comm.codecs.coded import CodedReducer, Section, tensors_of
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.codecs.reducer import CodecReducer
from shoal.comm.group import BucketSpec, Group
from shoal.comm.hierarchical import HierarchicalGroup
from shoal.comm.hierarchical_reducer import HierarchicalReducer


class LeaderCodecReducer(CodedReducer):
    """See `CodedReducer`. The buffers are those of the team's own reducer."""

    def __init__(
        self,
        group: HierarchicalGroup,
        buckets: Sequence[BucketSpec],
        facts: int,
        feedback: ErrorFeedback,
        sections: Sequence[Sequence[Section]],
    ) -> None:
        sums = [replace(spec, divided=False) for spec in buckets]
        rows = HierarchicalReducer.facts_between_leaders(group, facts)
        leader = group.outer
        self._outer = None if leader is None else CodecReducer(leader, sums, rows, feedback, sections)
        self._whole = HierarchicalReducer(group, buckets, facts, self._outer)
        super().__init__(group, buckets, self._whole.buffers, feedback, sections)
        payload = sum(spec.numel * spec.dtype.itemsize for spec in buckets)
        self.bytes_sent = group.inner.bytes_to_sum(payload) + (self._outer.bytes_sent if self._outer else 0)
        self._size = 1.0

    def open(self, weight: float, size: float = 1.0) -> None:
        self._size = size
        self._whole.open(weight)
        if self._outer is not None:
            self._outer.open(1.0, size)

    def ready(self, bucket: int) -> None:
        if self._outer is None and self._is_coded(bucket):
            buffer, sections = self.buffers[bucket], self._sections[bucket]
            for name, tensor in tensors_of(self._feedback.codec, bucket, buffer, sections):
                self._feedback.flush(name, tensor, self._size)
        self._whole.ready(bucket)

    def reduced(self, bucket: int) -> bool:
        return self._whole.reduced(bucket)

    def finish(self, facts: Tensor) -> Tensor:
        return self._whole.finish(facts)


def coded_reducer(
    group: Group,
    buckets: Sequence[BucketSpec],
    facts: int,
    feedback: ErrorFeedback,
    sections: Sequence[Sequence[Section]],
) -> CodedReducer:
    """The reducer that codes in `group`, whatever its kind."""
    if isinstance(group, HierarchicalGroup):
        return LeaderCodecReducer(group, buckets, facts, feedback, sections)
    return CodecReducer(group, buckets, facts, feedback, sections)
