"""A checkpoint on disk: a directory with the tensors as safetensors files and a manifest. No pickle.

    step-00000050/state-00000.safetensors    one a shard
    step-00000050/manifest.json              cursor, values, meta, sizes and checksums: see manifest.py

The directory gets its name when all of it is on the disk. What is read is what was checked: the bytes that
were hashed are those that the tensors are made of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.checkpoint.blocks import fault_in_cover
from shoal.checkpoint.durable import replacing, write_file
from shoal.checkpoint.manifest import MANIFEST, FileEntry, Manifest, TensorEntry, encode_plain
from shoal.checkpoint.snapshot import Snapshot
from shoal.checkpoint.tensorfile import DTYPES, parse
from shoal.core.cursor import Cursor
from shoal.core.errors import CheckpointError
from shoal.core.state import Piece, ShardedState


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole. The pieces of `state` are whole, in memory of their own."""

    path: Path
    cursor: Cursor
    state: ShardedState
    meta: Mapping[str, Any]


def write(directory: Path, name: str, shards: Sequence[ShardedState], cursor: Cursor, meta: Mapping[str, Any]) -> Path:
    """Write a checkpoint as `directory`/`name`, replacing one of that name; returns when it is on the disk.

    Raises CheckpointError for state that cannot be saved and OSError for a disk that cannot be written;
    neither leaves anything behind.
    """
    snapshot = Snapshot(shards)
    write_snapshot(directory, name, snapshot, cursor, encode_plain(meta, "meta"))
    return directory / name


def write_snapshot(directory: Path, name: str, snapshot: Snapshot, cursor: Cursor, meta: str) -> Manifest:
    """Write a checkpoint as `write` does, from a copy of the state that was made before and meta as JSON."""
    values = snapshot.values()
    directory.mkdir(parents=True, exist_ok=True)
    with replacing(directory / name) as temporary:
        files = {file: write_file(temporary / file, content.chunks()) for file, content in snapshot.files.items()}
        manifest = Manifest(cursor, values, json.loads(meta), files, snapshot.tensors)
        write_file(temporary / MANIFEST, [memoryview(manifest.encode())])
    return manifest


def read(path: Path) -> Checkpoint:
    """Read the checkpoint in the directory `path`, checking every byte.

    Raises CheckpointError that names the damaged file and what is wrong with it.
    """
    manifest = Manifest.read(path)
    parts = {name: _read_tensors(path / name, entry) for name, entry in manifest.files.items()}
    pieces: dict[str, Piece] = {}
    for name, entry in manifest.tensors.items():
        try:
            pieces[name] = Piece.whole(_assemble(name, entry, parts))
        except ValueError as error:
            raise CheckpointError(f"{path / MANIFEST} is damaged: {name}: {error}") from error
    return Checkpoint(path, manifest.cursor, ShardedState(pieces, manifest.values), manifest.meta)


def _read_tensors(path: Path, entry: FileEntry) -> dict[str, Tensor]:
    try:
        found_bytes = path.stat().st_size
        if found_bytes < entry.size_bytes:
            raise CheckpointError(f"{path} is truncated: {found_bytes} of {entry.size_bytes} bytes")
        if found_bytes > entry.size_bytes:
            raise CheckpointError(f"{path} is too long: {found_bytes} bytes instead of {entry.size_bytes}")
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CheckpointError(f"{path} is damaged: its checksum differs from the manifest's")
    try:
        return parse(data)
    except ValueError as error:
        raise CheckpointError(f"{path} is no safetensors file: {error}") from error


def _assemble(name: str, entry: TensorEntry, parts: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
    if fault := fault_in_cover(entry.shape, [(block.offset, block.shape) for block in entry.blocks]):
        raise ValueError(fault)
    found: list[Tensor] = []
    for block in entry.blocks:
        tensor = parts.get(block.file, {}).get(name)
        if tensor is None or tuple(tensor.shape) != block.shape or DTYPES.get(tensor.dtype) != entry.dtype:
            raise ValueError(f"{block.file} does not hold what the manifest says")
        found.append(tensor)
    if len(found) == 1:
        return found[0]
    whole = torch.empty(entry.shape, dtype=found[0].dtype)
    for block, tensor in zip(entry.blocks, found, strict=True):
        region = tuple(slice(o, o + s) for o, s in zip(block.offset, block.shape, strict=True))
        whole[region] = tensor
    return whole
