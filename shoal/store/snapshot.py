"""Snapshots of a whole fleet of servers on disk: safetensors and JSON, one directory each.

``000012/post-0.safetensors`` and ``post-0.json`` come from one server. `complete.json` is written last, when all have
written theirs: a directory without it is no snapshot. What is read back is checked against the hashes in it.

All servers are cut at one moment with respect to transactions (see `shoal.store.keeper`): what one of them has
committed, all have committed, or still hold staged with the first server remembering the commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import CheckpointError, UserError
from shoal.store.state import State

_COMPLETE = "complete.json"
_FORMAT = 1
_CHUNK_BYTES = 4 << 20
KEPT = 2


@dataclass(frozen=True)
class Snapshot:
    """One complete snapshot."""

    path: Path
    number: int
    servers: int


def directory_of(root: Path, number: int) -> Path:
    return root / f"{number:06d}"


def write_part(state: State, directory: Path, post: int) -> None:
    """Write one server's state and flush it to the disk."""
    from safetensors.numpy import save_file

    meta, arrays = state.dump(copy=False)
    path = directory / f"post-{post}.safetensors"
    save_file({name: _contiguous(array) for name, array in arrays.items()}, path)
    _flush(path)
    about = {"format": _FORMAT, "meta": meta, "bytes": path.stat().st_size, "sha256": _sha256(path)}
    with (directory / f"post-{post}.json").open("w", encoding="utf-8") as file:
        json.dump(about, file)
        file.flush()
        os.fsync(file.fileno())


def complete(directory: Path, number: int, servers: int, about: Mapping[str, Any]) -> None:
    """All servers have written their parts: from now on this is a snapshot."""
    files = {f"post-{post}.json": _sha256(directory / f"post-{post}.json") for post in range(servers)}
    temporary = directory / f".tmp-{_COMPLETE}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, "number": number, "servers": servers, "files": files, **about}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / _COMPLETE)
    for parent in (directory, directory.parent):
        _flush(parent)


def newest(root: Path) -> Snapshot | None:
    """The newest complete and undamaged snapshot under `root`."""
    for path in sorted(root.glob("[0-9]" * 6), reverse=True):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            about = json.loads((path / _COMPLETE).read_text(encoding="utf-8"))
            if about["format"] == _FORMAT and all(_is_whole(path / name, sha) for name, sha in about["files"].items()):
                return Snapshot(path, int(about["number"]), int(about["servers"]))
    return None


def next_number(root: Path) -> int:
    """A number that no directory has, greater than all."""
    return 1 + max((int(path.name) for path in root.glob("[0-9]" * 6)), default=0)


def read_part(directory: Path, post: int) -> State:
    """One server's state. Raises `CheckpointError` if it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        about = json.loads((directory / f"post-{post}.json").read_text(encoding="utf-8"))
        arrays = load_file(directory / f"post-{post}.safetensors")
        return State.load(about["meta"], arrays, copy=False)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"the snapshot {directory} of the store cannot be read: {error}") from error


def prune(root: Path, keep: int = KEPT) -> None:
    """Remove all but the newest complete snapshots, and incomplete ones that are older than these."""
    whole = [path for path in sorted(root.glob("[0-9]" * 6), reverse=True) if (path / _COMPLETE).is_file()]
    if len(whole) < keep:
        return
    for path in root.glob("[0-9]" * 6):
        if path.name < whole[keep - 1].name:
            shutil.rmtree(path, ignore_errors=True)


def prepare(root: Path) -> None:
    """Make the directory; raises `UserError` where that cannot be."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".tmp-probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"snapshots cannot be written to {root}: {error.strerror}") from None


def _contiguous(array: Any) -> Any:
    import numpy as np

    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _is_whole(path: Path, sha256: str) -> bool:
    """Whether a server's JSON file is what it was, and its tensors, too."""
    if _sha256(path) != sha256:
        return False
    about = json.loads(path.read_text(encoding="utf-8"))
    tensors = path.with_suffix(".safetensors")
    return bool(tensors.stat().st_size == about["bytes"] and _sha256(tensors) == about["sha256"])


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
