"""Two bytes a number: bf16 keeps the range of float32, fp16 keeps three bits more of each number.

What is beyond the range of the format is cut to its end, so that large numbers do not become infinite on the way;
`ErrorFeedback` brings the rest with the next tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec, as_bytes, as_dtype, put
from shoal.comm.codecs.names import refuse_parameter


class Half(Codec):
    """Rounds to the nearest number of a narrower type."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name, self._dtype = name, dtype
        self._limit = float(torch.finfo(dtype).max)

    def encode(self, name: str, tensor: Tensor) -> Tensor:
        flat = tensor.detach().reshape(-1)
        if flat.numel():
            low, high = torch.aminmax(flat)
            if not (float(low) >= -self._limit and float(high) <= self._limit):
                flat = torch.where(flat.isfinite(), flat.clamp(-self._limit, self._limit), flat)
        return as_bytes(flat.to(self._dtype))

    def decode(self, name: str, payload: Tensor, out: Tensor, scale: float = 1.0, add: bool = False) -> None:
        put(as_dtype(payload, self._dtype), out, scale, add)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        return prod(shape) * self._dtype.itemsize


def make_bf16(parameter: str | None) -> Codec:
    refuse_parameter("bf16", parameter)
    return Half("bf16", torch.bfloat16)


def make_fp16(parameter: str | None) -> Codec:
    refuse_parameter("fp16", parameter)
    return Half("fp16", torch.float16)
