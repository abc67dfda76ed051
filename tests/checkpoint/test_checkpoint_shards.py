"""A worker's part of a checkpoint on its way to the one that writes."""

from __future__ import annotations

import pytest
import torch

from shoal.checkpoint.shards import pack_state, unpack_state
from shoal.core.state import Piece, ShardedState

pytestmark = pytest.mark.unit


def test_places_bits_and_values_come_back() -> None:
    half = torch.randn(3, 4)[:, ::2]
    state = ShardedState(
        {"model.w": Piece(half, (6, 2), (3, 0)), "model.n": Piece.whole(torch.tensor(7))}, {"optimizer": {"lr": [0.1]}}
    )
    back = unpack_state(pack_state(state))
    assert torch.equal(back.pieces["model.w"].tensor, half)
    assert (back.pieces["model.w"].shape, back.pieces["model.w"].offset) == ((6, 2), (3, 0))
    assert back.pieces["model.n"].tensor.item() == 7
    assert back.values == state.values


def test_an_empty_state_is_one_too() -> None:
    assert unpack_state(pack_state(ShardedState())) == ShardedState()
