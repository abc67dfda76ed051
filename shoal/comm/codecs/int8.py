"""One byte a number: multiples of a step that each chunk of numbers has for itself.

The step is the largest absolute value of the chunk over 127. Numbers are rounded to the nearest multiple, or, with
``int8:stochastic``, up or down by chance, so that the mean over many tensors is right even without error feedback. The
chance is drawn from a seed of the name and the steps: the same tensor gives the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from shoal.comm.codecs.base import Codec, as_dtype, blocks, put
from shoal.core.errors import ConfigError

CHUNK = 1024
_LEVELS = 127
_STOCHASTIC = "stochastic"


class Int8(Codec):
    """A payload is all steps (float32), then all numbers (int8), filled up to whole words."""

    def __init__(self, stochastic: bool = False) -> None:
        self.name = f"int8:{_STOCHASTIC}" if stochastic else "int8"
        self._stochastic = stochastic

    def encode(self, name: str, tensor: Tensor) -> Tensor:
        flat = tensor.detach().reshape(-1)
        payload = torch.zeros(self.payload_bytes(flat.shape), dtype=torch.uint8)
        steps, numbers = _split(payload, flat.numel())
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        for block in blocks(flat.numel()):
            part = flat[block]
            rows = _rows(part)
            step = steps[block.start // CHUNK :][: len(rows)]
            step.copy_(_steps(rows))
            # a step that is zero belongs to zeros, or to numbers too small for a step: they become zero
            factor = step.reciprocal().nan_to_num(posinf=0.0)
            multiples = rows.float() * factor[:, None]
            if self._stochastic:
                generator.manual_seed(zlib.crc32(step.numpy().tobytes(), generator.initial_seed()))
                multiples.add_(_chances(multiples.numel(), generator).view_as(multiples)).floor_()
            else:
                multiples.round_()
            numbers[block].copy_(multiples.clamp_(-_LEVELS, _LEVELS).view(-1)[: len(part)])
        return payload

    def decode(self, name: str, payload: Tensor, out: Tensor, scale: float = 1.0, add: bool = False) -> None:
        flat = out.view(-1)
        steps, numbers = _split(payload, len(flat))
        steps = steps * scale
        for block in blocks(len(flat)):
            rows = _rows(numbers[block].float())
            rows.mul_(steps[block.start // CHUNK :][: len(rows), None])
            put(rows.view(-1)[: len(flat[block])], flat[block], 1.0, add)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        numel = prod(shape)
        return 4 * -(-numel // CHUNK) + 4 * -(-numel // 4)


def _split(payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
    """The steps and the numbers in a payload."""
    end = 4 * -(-numel // CHUNK)
    return as_dtype(payload[:end], torch.float32), payload[end : end + numel].view(torch.int8)


def _rows(part: Tensor) -> Tensor:
    """Numbers in rows of a chunk each, the last filled up with zeros."""
    missing = -len(part) % CHUNK
    return (torch.cat([part, part.new_zeros(missing)]) if missing else part).view(-1, CHUNK)


def _steps(rows: Tensor) -> Tensor:
    """The step of each row."""
    return torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)) / _LEVELS


def _chances(numel: int, generator: torch.Generator) -> Tensor:
    """Numbers from 0 to 1 in steps of 1/256, whose mean is a half: eight of them from each draw."""
    draws = torch.randint(-(2**63), 2**63 - 1, (-(-numel // 8),), generator=generator)
    return draws.view(torch.uint8)[:numel].float().add_(0.5).mul_(1 / 256)


def make_int8(parameter: str | None) -> Codec:
    if parameter is not None and parameter != _STOCHASTIC:
        raise ConfigError(
            f"comm.codec=int8:{parameter} has a wrong parameter: write int8 for rounding to the nearest, or "
            f"int8:{_STOCHASTIC} for rounding by chance"
        )
    return Int8(stochastic=parameter is not None)
