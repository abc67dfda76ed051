"""The interface of codecs: a float tensor becomes fewer bytes, and comes back nearly the same.

A codec knows nothing of groups: what it makes of a tensor is a row of bytes that anything may carry. What is lost on
the way is the business of `ErrorFeedback`, which gives it to the codec again with the next tensor of that name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

BLOCK = 1 << 17  # numbers worked on at a time


class Codec(ABC):
    """Makes bytes of float tensors and tensors of the bytes. Not to be shared by threads.

    Promises of every codec, held by `shoal.testing.codec_contract`:

    - the length of a payload depends on shape and dtype of the tensor only: it is `payload_bytes`;
    - the same calls give the same bits;
    - the tensor that is encoded stays as it is, and the payload does not share its memory;
    - a tensor that holds NaN or infinity decodes to one that holds NaN or infinity, not always at the same place: bad
      values are never hidden; a tensor of numbers that float32 holds, and can add up, decodes to finite ones;
    - what is left out is never larger, by its norm, than what was given: else error feedback would not settle.
    """

    name: str  # as `codec_named` would be given it, with its parameter
    exact: bool = False  # what is decoded is what was encoded, to the last bit
    by_parameter: bool = False  # looks at the shape: is given one parameter at a time, where others get flat buckets

    @abstractmethod
    def encode(self, name: str, tensor: Tensor) -> Tensor:
        """The payload of `tensor`: 1-d, uint8.

        `tensor` is float32 or float64, of any shape, contiguous. `name` says whose it is: a codec may keep something
        from one tensor of a name for the next one, which then has the same shape.
        """

    @abstractmethod
    def decode(self, name: str, payload: Tensor, out: Tensor, scale: float = 1.0, add: bool = False) -> None:
        """Write what `payload` says, times `scale`, into `out`, or add it to `out`.

        `out` has the shape of what was encoded, is contiguous, and float32 or float64. The payload may be of another
        process; it may lie at any place in memory and is not changed.
        """

    @abstractmethod
    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        """How long the payload of a tensor of this shape is. Pure."""

    def decode_sum(self, name: str, payloads: Sequence[Tensor], out: Tensor, scale: float = 1.0) -> None:
        """Write the sum of all `payloads`, in their order and times `scale`, into `out`. A codec overrides it where it
        can be quicker than one after the other."""
        for at, payload in enumerate(payloads):
            self.decode(name, payload, out, scale, add=at > 0)

    def ratio(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        """Bytes out for each byte in; 1 where nothing goes in. Pure."""
        size = prod(shape) * dtype.itemsize
        return self.payload_bytes(shape, dtype) / size if size else 1.0

    def commit(self) -> None:  # noqa: B027 - most codecs keep nothing
        """What was encoded since the last `commit` or `discard` has been used: keep what it taught."""

    def discard(self) -> None:  # noqa: B027
        """What was encoded since the last `commit` or `discard` is given up: be as before it."""


def as_dtype(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """View bytes as numbers, wherever they lie in memory."""
    if payload.storage_offset() % dtype.itemsize or payload.data_ptr() % dtype.itemsize:
        payload = payload.clone()
    return payload.view(dtype)


def as_bytes(tensor: Tensor) -> Tensor:
    """View a contiguous tensor as its bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def blocks(numel: int) -> Iterator[slice]:
    """Parts of a row of numbers that fit into the cache, with what is made of them on the way: memory that is new for
    each tensor costs more than the work on it."""
    return (slice(start, start + BLOCK) for start in range(0, numel, BLOCK))


def put(values: Tensor, out: Tensor, scale: float, add: bool) -> None:
    """Write flat `values`, times `scale`, into `out`, or add them. The product is rounded before it is added: a fused
    operation, which some processors have and others lack, would give other bits."""
    flat = out.view(-1)
    if scale == 1.0 and (not add or values.dtype == out.dtype):
        flat.add_(values) if add else flat.copy_(values)
        return
    for block in blocks(len(values)):
        part, target = values[block].to(out.dtype), flat[block]
        if add:
            target.add_(part * scale if scale != 1.0 else part)
        else:
            torch.mul(part, scale, out=target)
