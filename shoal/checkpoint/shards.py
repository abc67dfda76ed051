"""A worker's part of a checkpoint as bytes, to be sent to the one that writes: safetensors, nothing pickled."""

from __future__ import annotations

import json

from safetensors.torch import load, save

from shoal.core.state import Piece, ShardedState

_LENGTH_BYTES = 8


def pack_state(state: ShardedState) -> bytes:
    """Encode pieces, with their places in the whole, and values."""
    places = {name: [list(piece.shape), list(piece.offset)] for name, piece in state.pieces.items()}
    head = json.dumps({"places": places, "values": dict(state.values)}).encode()
    tensors = {name: piece.tensor.detach().cpu().contiguous().clone() for name, piece in state.pieces.items()}
    return len(head).to_bytes(_LENGTH_BYTES, "little") + head + save(tensors)


def unpack_state(data: bytes) -> ShardedState:
    """The inverse of `pack_state`."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    head = json.loads(data[_LENGTH_BYTES:end])
    tensors = load(data[end:])
    pieces = {
        name: Piece(tensors[name], tuple(shape), tuple(offset)) for name, (shape, offset) in head["places"].items()
    }
    return ShardedState(pieces, head["values"])
