"""Only the largest numbers: where they stand, and what they are.

Without `ErrorFeedback` the rest would never be sent; with it a small number is sent once it has grown large.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import numpy as np
import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec, as_bytes, as_dtype, blocks
from shoal.comm.codecs.names import number

DEFAULT_FRACTION = 0.01
_SAMPLES = 1 << 14  # looked at to guess which numbers may be among the largest
_MARGIN = 1.5  # so many times those that are sought: a guess that finds too few costs a second look


class TopK(Codec):
    """A payload is the positions (int32), then the values (float32), of the largest numbers by absolute value."""

    def __init__(self, fraction: float = DEFAULT_FRACTION) -> None:
        self.fraction = fraction
        self.name = f"topk:{fraction:g}"

    def encode(self, name: str, tensor: Tensor) -> Tensor:
        flat = tensor.detach().reshape(-1)
        places = largest(flat, self._count(flat.numel()))
        return torch.cat([as_bytes(places.to(torch.int32)), as_bytes(flat[places].to(torch.float32))])

    def decode(self, name: str, payload: Tensor, out: Tensor, scale: float = 1.0, add: bool = False) -> None:
        count = self._count(out.numel())
        places = as_dtype(payload[: 4 * count], torch.int32).long()
        values = as_dtype(payload[4 * count :], torch.float32).to(out.dtype) * scale
        flat = out.view(-1)
        if not add:
            flat.zero_()
        flat.index_add_(0, places, values)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        return 8 * self._count(prod(shape))

    def _count(self, numel: int) -> int:
        return min(numel, ceil(self.fraction * numel))


def largest(flat: Tensor, count: int) -> Tensor:
    """Where the `count` largest numbers stand, by absolute value, in rising order; what is not a number is largest.

    A sample of the numbers tells a bound that a few more of them than `count` will pass. Where enough do, the largest
    are among them, and only they need be compared.
    """
    stride = len(flat) // _SAMPLES
    if stride > 1:
        sample = flat[::stride].abs()
        bound = torch.topk(sample, min(len(sample), ceil(_MARGIN * count / stride) + 1)).values[-1]
        candidates = _not_below(flat, float(bound))
        if len(candidates) >= count:
            chosen = torch.topk(flat[candidates].abs(), count, sorted=False).indices
            return candidates[chosen].sort().values
    return torch.topk(flat.abs(), count, sorted=False).indices.sort().values


def _not_below(flat: Tensor, bound: float) -> Tensor:
    """Where the numbers stand that are not below `bound`, by absolute value. NumPy finds them much quicker."""
    numbers = flat.numpy()
    found = [np.flatnonzero(~(np.abs(numbers[b]) < bound)) + b.start for b in blocks(len(flat))]
    return torch.from_numpy(np.concatenate(found))


def make_topk(parameter: str | None) -> Codec:
    if parameter is None:
        return TopK()
    return TopK(number("topk", parameter, float, 1e-6, 1.0, "the fraction of numbers that are sent"))
