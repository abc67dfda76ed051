"""A copy of sharded state, laid out as the files that will hold it: writing it needs nothing but the disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.checkpoint.blocks import fault_in_cover
from shoal.checkpoint.manifest import Block, TensorEntry, encode_plain
from shoal.checkpoint.tensorfile import DTYPES, TensorFile
from shoal.core.errors import CheckpointError
from shoal.core.state import ShardedState

Placement = tuple[tuple[int, ...], tuple[int, ...]]  # shape of the whole, offset


class Snapshot:
    """Room for state of one layout, and a copy of it. Raises CheckpointError if blocks make no whole."""

    def __init__(self, shards: Sequence[ShardedState]) -> None:
        self._placements = [_placements(shard) for shard in shards]
        self.files: dict[str, TensorFile] = {}
        blocks: dict[str, list[Block]] = {}
        wholes: dict[str, tuple[str, tuple[int, ...]]] = {}
        for number, shard in enumerate(shards):
            file = f"state-{number:05d}.safetensors"
            self.files[file] = TensorFile({name: piece.tensor for name, piece in shard.pieces.items()})
            for name, piece in shard.pieces.items():
                kind = (DTYPES[piece.tensor.dtype], piece.shape)
                if wholes.setdefault(name, kind) != kind:
                    raise CheckpointError(f"{name} is {wholes[name]} in one shard and {kind} in another")
                blocks.setdefault(name, []).append(Block(file, piece.offset, tuple(piece.tensor.shape)))
        self.tensors = {name: TensorEntry(dtype, shape, tuple(blocks[name])) for name, (dtype, shape) in wholes.items()}
        for name, entry in self.tensors.items():
            if fault := fault_in_cover(entry.shape, [(block.offset, block.shape) for block in entry.blocks]):
                raise CheckpointError(f"{name} cannot be saved: {fault}")
        self._values: list[str] = []
        self.fill(shards)

    def fits(self, shards: Sequence[ShardedState]) -> bool:
        """Whether `shards` have the layout that this was made for."""
        return len(shards) == len(self.files) and all(
            placements == _placements(shard) and file.fits({name: piece.tensor for name, piece in shard.pieces.items()})
            for placements, file, shard in zip(self._placements, self.files.values(), shards, strict=True)
        )

    def fill(self, shards: Sequence[ShardedState]) -> None:
        """Copy `shards`, which must fit. Nothing of them is held on to."""
        self._values = [encode_plain(shard.values, "values") for shard in shards if shard.values]
        for file, shard in zip(self.files.values(), shards, strict=True):
            file.fill({name: piece.tensor for name, piece in shard.pieces.items()})

    def values(self) -> dict[str, Any]:
        """The values of all shards together. Raises CheckpointError if two contradict each other."""
        merged: dict[str, Any] = {}
        source: dict[str, str] = {}
        for text in self._values:
            values: Mapping[str, Any] = json.loads(text)
            for key, value in values.items():
                written = json.dumps(value, sort_keys=True)  # compared as text: NaN is not equal to itself
                if source.setdefault(key, written) != written:
                    raise CheckpointError(f"the shards of a checkpoint give different values for {key!r}")
                merged[key] = value
        return merged


def _placements(shard: ShardedState) -> list[Placement]:
    return [(piece.shape, piece.offset) for piece in shard.pieces.values()]
