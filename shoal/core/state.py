"""Durable state as any strategy writes it and any other reads it: named tensors with global shape and offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """A block of a tensor: `tensor` stands at `offset` in a whole of `shape`."""

    tensor: Tensor
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    @classmethod
    def whole(cls, tensor: Tensor) -> Piece:
        return cls(tensor, tuple(tensor.shape), (0,) * tensor.dim())

    @property
    def is_whole(self) -> bool:
        return tuple(self.tensor.shape) == self.shape


@dataclass(frozen=True)
class ShardedState:
    """What one worker contributes to a checkpoint, or the whole that was read from one.

    Names are ``model.<parameter or buffer>`` and ``optimizer.<parameter>.<state>``; `values` holds what is not a
    tensor (hyper-parameters of the optimizer, say) as plain JSON.
    """

    pieces: Mapping[str, Piece] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
