"""No codec at all: bytes as they are, for comparison and for what must be exact."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec, as_bytes, as_dtype, put
from shoal.comm.codecs.names import refuse_parameter


class Plain(Codec):
    """Copies. A payload has the dtype of its tensor, which its length tells."""

    name = "none"
    exact = True

    def encode(self, name: str, tensor: Tensor) -> Tensor:
        return as_bytes(tensor).clone()

    def decode(self, name: str, payload: Tensor, out: Tensor, scale: float = 1.0, add: bool = False) -> None:
        wide = payload.numel() == out.numel() * torch.float64.itemsize
        put(as_dtype(payload, torch.float64 if wide else torch.float32), out, scale, add)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        return prod(shape) * dtype.itemsize


def make_none(parameter: str | None) -> Codec:
    refuse_parameter("none", parameter)
    return Plain()
