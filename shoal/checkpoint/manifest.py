"""The manifest of a checkpoint: what lies in it, where, and the checksums by which it is believed.

It is one line of canonical JSON. Reading accepts exactly the bytes that writing makes, so that no changed bit
passes, not even one that leaves the meaning as it was. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.cursor import Cursor
from shoal.core.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """A file of the checkpoint, as it must be found."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Block:
    """A part of a tensor: which file holds it, and where in the whole it stands."""

    file: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorEntry:
    """A tensor: `dtype` as safetensors calls it (``F32``), the shape of the whole, the blocks filling it."""

    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything of a checkpoint but the tensors' bytes."""

    cursor: Cursor
    values: Mapping[str, Any]
    meta: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    tensors: Mapping[str, TensorEntry]

    @property
    def size_bytes(self) -> int:
        """Size of all files but the manifest itself."""
        return sum(file.size_bytes for file in self.files.values())

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read the manifest of the checkpoint in `directory`, and nothing else. Raises CheckpointError."""
        path = directory / MANIFEST
        try:
            return cls.decode(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        document = {
            "format": FORMAT,
            "cursor": self.cursor.to_json(),
            "values": self.values,
            "meta": self.meta,
            "files": {name: vars(file) for name, file in self.files.items()},
            "tensors": {
                name: {
                    "dtype": tensor.dtype,
                    "shape": tensor.shape,
                    "blocks": [vars(block) for block in tensor.blocks],
                }
                for name, tensor in self.tensors.items()
            },
        }
        return _canonical({**document, "checksum": _checksum(document)})

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return the manifest that `encode` made `data` of. Raises ValueError with the reason if not."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            raise ValueError("it is no JSON") from None
        if not isinstance(document, dict) or "checksum" not in document:
            raise ValueError("it has no checksum")
        checksum = document.pop("checksum")
        if checksum != _checksum(document) or data != _canonical({**document, "checksum": checksum}):
            raise ValueError("its checksum differs")
        if document["format"] != FORMAT:
            raise ValueError(f"it has format {document['format']}, and this version of Shoal reads format {FORMAT}")
        files = {name: FileEntry(**entry) for name, entry in document["files"].items()}
        for name in files:
            # a checksum is no signature: a manifest must not lead out of its own directory
            if "/" in name or name in ("", ".", ".."):
                raise ValueError(f"it names the file {name!r} outside the checkpoint")
        return cls(
            cursor=Cursor.from_json(document["cursor"]),
            values=document["values"],
            meta=document["meta"],
            files=files,
            tensors={name: _tensor_entry(entry) for name, entry in document["tensors"].items()},
        )


def encode_plain(value: Mapping[str, Any], what: str) -> str:
    """Return `value` as JSON text. Raises CheckpointError for what JSON would lose or silently change.

    Tuples become lists. NaN and infinities are kept, as Python writes them.
    """
    _refuse_lossy(value, what)
    return json.dumps(value)


def _refuse_lossy(value: object, where: str) -> None:
    if value is None or isinstance(value, str | int | float):
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}: a checkpoint holds JSON, whose keys are strings")
            _refuse_lossy(inner, f"{where}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        for index, inner in enumerate(value):
            _refuse_lossy(inner, f"{where}[{index}]")
    else:
        raise CheckpointError(
            f"{where} is a {type(value).__name__}, which JSON cannot hold: "
            "give numbers, strings, lists and dictionaries, and tensors as tensors"
        )


def _tensor_entry(entry: Mapping[str, Any]) -> TensorEntry:
    blocks = tuple(Block(b["file"], tuple(b["offset"]), tuple(b["shape"])) for b in entry["blocks"])
    return TensorEntry(entry["dtype"], tuple(entry["shape"]), blocks)


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(document)).hexdigest()
