"""What reducers that code have in common: what lies in their buckets, and what has been left out of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.comm.group import BucketReducer, BucketSpec, Group


@dataclass(frozen=True)
class Section:
    """Elements ``[start, stop)`` of a bucket are the gradient of the parameter `name`, which has this shape."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class CodedReducer(BucketReducer):
    """See `BucketReducer`. `sections` says for each bucket what lies in it; a bucket without any (running statistics,
    say), or of a type that codecs do not take, travels as it is.

    What the codec loses is in `feedback`, which outlives the reducer: whoever makes a step of it must `commit` or
    `discard` that.
    """

    bytes_sent: int  # by this member, in each step

    def __init__(
        self,
        group: Group,
        buckets: Sequence[BucketSpec],
        buffers: Sequence[Tensor],
        feedback: ErrorFeedback,
        sections: Sequence[Sequence[Section]],
    ) -> None:
        self._group, self._feedback, self.buffers = group, feedback, buffers
        self._specs, self._sections = tuple(buckets), tuple(tuple(one) for one in sections)

    @abstractmethod
    def open(self, weight: float, size: float = 1.0) -> None:
        """See `BucketReducer`. `size`: what the sums will be divided by, or something in proportion to it that is known
        beforehand (the samples of the batch); the same on every member."""

    def _is_coded(self, number: int) -> bool:
        return bool(self._sections[number]) and self._specs[number].dtype in (torch.float32, torch.float64)

    # ---- residuals, by parameter

    def summed_residuals(self) -> dict[str, Tensor]:
        """What all members together have not sent yet, flat, for each coded parameter. Collective."""
        state = self._feedback.state()
        found: dict[str, Tensor] = {}
        for number in range(len(self.buffers)):
            if not self._is_coded(number):
                continue
            whole = torch.zeros_like(self.buffers[number])
            for name, tensor in tensors_of(self._feedback.codec, number, whole, self._sections[number]):
                if name in state:
                    tensor.copy_(state[name])
            self._group.all_reduce(whole, "adding up what codecs have left out")
            found.update({s.name: whole[s.start : s.stop] for s in self._sections[number]})
        return found

    def load_residuals(self, residuals: Mapping[str, Tensor]) -> None:
        """This member goes on from these; a parameter that is not among them has none. Not collective."""
        state: dict[str, Tensor] = {}
        for number in range(len(self.buffers)):
            given = [(s, residuals[s.name]) for s in self._sections[number] if s.name in residuals]
            if not self._is_coded(number) or not given:
                continue
            whole = torch.zeros_like(self.buffers[number])
            for section, residual in given:
                whole[section.start : section.stop] = residual.reshape(-1)
            tensors = tensors_of(self._feedback.codec, number, whole, self._sections[number])
            state.update({name: tensor.clone() for name, tensor in tensors})
        self._feedback.load(state)


def tensors_of(codec: Codec, number: int, buffer: Tensor, sections: Sequence[Section]) -> list[tuple[str, Tensor]]:
    """What a codec is given of a bucket: each parameter in its shape, or all of it at once."""
    if codec.by_parameter:
        return [(s.name, buffer[s.start : s.stop].view(s.shape)) for s in sections]
    return [(f"bucket {number}", buffer)]
