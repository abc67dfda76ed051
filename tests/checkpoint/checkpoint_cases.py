"""States for tests of checkpoints: what they hold follows from a step, so that a mixture would show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from shoal.checkpoint.catalog import name_of
from shoal.checkpoint.format import Checkpoint, write
from shoal.core.cursor import Cursor
from shoal.core.state import Piece, ShardedState


def cursor_at(step: int) -> Cursor:
    return Cursor(epoch=step // 10, batch=step % 10, step=step, samples=step * 100)


def state_at(step: int, tensors: int = 4, elements: int = 64) -> ShardedState:
    pieces = {f"model.{i}": Piece.whole(torch.full((elements,), float(step * 100 + i))) for i in range(tensors)}
    return ShardedState(pieces, {"optimizer": {"step": step}})


def save(directory: Path, step: int, **meta: float) -> Path:
    return write(directory, name_of(step), [state_at(step)], cursor_at(step), {"step": step, **meta})


def assert_belongs_together(checkpoint: Checkpoint) -> None:
    """Tensors, values, meta and cursor are all of the same step."""
    step = checkpoint.cursor.step
    assert checkpoint.cursor == cursor_at(step)
    assert checkpoint.path.name == name_of(step)
    assert checkpoint.state.values == {"optimizer": {"step": step}}
    assert checkpoint.meta["step"] == step
    assert checkpoint.state.pieces
    for i, piece in enumerate(checkpoint.state.pieces.values()):
        assert torch.equal(piece.tensor, torch.full_like(piece.tensor, float(step * 100 + i)))


def whole(tensors: Mapping[str, Tensor]) -> ShardedState:
    return ShardedState({name: Piece.whole(tensor) for name, tensor in tensors.items()})


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal in type, shape and every bit, NaN included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(
        a.detach().contiguous().reshape(-1).view(torch.uint8),
        b.detach().contiguous().reshape(-1).view(torch.uint8),
    )


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
