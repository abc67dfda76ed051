"""Buckets of gradients that travel coded.

Each member encodes its own buckets and sends them to all; everyone decodes all payloads and adds them in the order of
ranks, so all hold the same bits (as far as their processors and builds of torch give the same bits for the same work,
which the optimizer after it relies on as well). For N members a payload crosses the wire N - 1 times, where an exact
sum needs 2 (N - 1) / N of the buckets: a codec must make them smaller than 2 / N to be worth anything.

A bucket is encoded when it is ready, and on its way while later ones are computed, where the group can do that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.comm.codecs.base import as_bytes
from shoal.comm.codecs.coded import CodedReducer, Section, tensors_of
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.group import BucketSpec, Group

_WORD = 8  # everything in a message begins at a multiple of it, so that it can be looked at where it lies
_WHAT = "the sum of gradients"


@dataclass(frozen=True)
class _Coded:
    """One tensor that the codec is given, in the caller's buffer, and where its payload lies in the message."""

    name: str
    tensor: Tensor
    start: int
    stop: int


class CodecReducer(CodedReducer):
    """See `CodedReducer`. In a group of one nothing is coded, and what an earlier group left over is made good."""

    def __init__(
        self,
        group: Group,
        buckets: Sequence[BucketSpec],
        facts: int,
        feedback: ErrorFeedback,
        sections: Sequence[Sequence[Section]],
    ) -> None:
        buffers = [torch.zeros(spec.numel, dtype=spec.dtype) for spec in buckets]
        super().__init__(group, buckets, buffers, feedback, sections)
        self._own: list[Tensor] = []  # the message of each bucket
        self._coded: list[list[_Coded]] = []
        self._raw: list[slice | None] = []  # where a message holds the bucket as it is
        for number in range(len(buckets)):
            # the first message to arrive holds the weight of the step, the last to be sent holds the facts
            head = _WORD * ((number == 0) + (facts if number == len(buckets) - 1 else 0))
            self._lay_out(number, head)
        self._all = [[torch.zeros_like(own) for _ in range(group.size)] for own in self._own]
        self._facts = facts
        self.bytes_sent = (group.size - 1) * sum(len(own) for own in self._own)  # by this member, in each step
        self._begin(0.0, 1.0)

    def _lay_out(self, number: int, head: int) -> None:
        """Say what is where in the message of a bucket."""
        spec, buffer, codec = self._specs[number], self.buffers[number], self._feedback.codec
        coded: list[_Coded] = []
        at, raw = head, None
        if self._is_coded(number):
            for name, tensor in tensors_of(codec, number, buffer, self._sections[number]):
                length = codec.payload_bytes(tensor.shape, tensor.dtype)
                coded.append(_Coded(name, tensor, at, at + length))
                at += -(-length // _WORD) * _WORD
        else:
            raw = slice(at, at + spec.numel * spec.dtype.itemsize)
            at = raw.stop
        self._own.append(torch.zeros(max(at, _WORD), dtype=torch.uint8))
        self._coded.append(coded)
        self._raw.append(raw)

    def _begin(self, weight: float, size: float) -> None:
        self._weight, self._size = weight, size
        self._marked: set[int] = set()
        self._waits: list[Callable[[], None]] = []

    def open(self, weight: float, size: float = 1.0) -> None:
        self._begin(weight, size)
        self._own[0][:_WORD] = _numbers_as_bytes([weight])

    def ready(self, bucket: int) -> None:
        self._marked.add(bucket)
        own, raw = self._own[bucket], self._raw[bucket]
        if raw is not None:
            own[raw] = as_bytes(self.buffers[bucket])
        for one in self._coded[bucket]:
            if self._group.size == 1:
                self._feedback.flush(one.name, one.tensor, self._size)
            else:
                own[one.start : one.stop] = self._feedback.encode(one.name, one.tensor, self._size)
        last = len(self.buffers) - 1
        while len(self._waits) in self._marked and len(self._waits) < last:
            self._send()

    def _send(self) -> None:
        """Begin to send the next message. All members send them in the order of their numbers."""
        number = len(self._waits)
        self._waits.append(self._group.start_gather(self._all[number], self._own[number], _WHAT))

    def finish(self, facts: Tensor) -> Tensor:
        missing = sorted(set(range(len(self.buffers))) - self._marked)
        if missing:
            raise RuntimeError(f"finish() before ready() of buckets {missing}")
        last = len(self.buffers) - 1
        start = _WORD if last == 0 else 0
        end = start + _WORD * self._facts
        self._own[last][start:end] = as_bytes(facts)
        self._send()
        divisor = 0.0
        for number, wait in enumerate(self._waits):
            wait()
            if number == 0:
                for message in self._all[0]:  # in the order of ranks, so that all divide by the same bits
                    divisor += float(message[:_WORD].view(torch.float64))
            divided = self._specs[number].divided and divisor != 0
            self._add_up(number, 1.0 / divisor if divided else 1.0)
        self._waits.clear()
        return torch.stack([message[start:end].view(torch.float64) for message in self._all[last]])

    def _add_up(self, number: int, factor: float) -> None:
        buffer, messages, raw = self.buffers[number], self._all[number], self._raw[number]
        if raw is not None:
            for rank, message in enumerate(messages):
                part = message[raw].view(buffer.dtype)
                buffer.copy_(part) if rank == 0 else buffer.add_(part)
            if factor != 1.0:
                buffer.mul_(factor)
            return
        if self._group.size == 1:
            buffer.mul_(factor)
            return
        for one in self._coded[number]:
            payloads = [message[one.start : one.stop] for message in messages]
            self._feedback.codec.decode_sum(one.name, payloads, one.tensor, factor)


def _numbers_as_bytes(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).view(torch.uint8)
