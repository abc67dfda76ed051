"""A shard's state as plain data and named arrays: what a snapshot holds, and what a new backup is sent."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import ShoalError
from shoal.store.answered import Answered
from shoal.store.board import Board
from shoal.store.committing import Committing
from shoal.store.eras import Eras
from shoal.store.held import Held
from shoal.store.holdings import Holdings
from shoal.store.packing import pack, unpack
from shoal.store.staging import Part
from shoal.store.sums import Contribution

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

FORMAT = 1


def dump(
    holdings: Holdings, committing: Committing, board: Board, eras: Eras, answered: Answered
) -> tuple[dict[str, Any], Arrays]:
    """All of it; the arrays are those that are in use."""
    arrays: Arrays = {}
    meta = {
        "format": FORMAT,
        "version": holdings.version,
        "commits": committing.commits,
        "held": [_dump_held(held, f"held/{at}", arrays) for at, held in enumerate(holdings.held.values())],
        "staged": [
            [name, [[part, _dump_part(updates, f"staged/{at}/{part}", arrays)] for part, updates in parts.items()]]
            for at, (name, parts) in enumerate(committing.staging.transactions.items())
        ],
        "log": _dump_packed(tuple(committing.log.values()), "log", arrays),
        "board": board.dump(),
        "eras": sorted(eras.numbers.items()),
        "answers": answered.dump(),
    }
    return meta, arrays


def load(
    meta: dict[str, Any], arrays: Arrays, holdings: Holdings, committing: Committing, board: Board, eras: Eras
) -> None:
    """Fill empty parts of a shard with what was dumped; its arrays are used as they are."""
    if meta.get("format") != FORMAT:
        raise ShoalError(f"the snapshot has format {meta.get('format')!r}, and this version reads {FORMAT}")
    holdings.version = meta["version"]
    for at, one in enumerate(meta["held"]):
        held = _load_held(one, f"held/{at}", arrays)
        holdings.held[held.label] = held
    committing.commits = meta["commits"]
    for at, (name, parts) in enumerate(meta["staged"]):
        committing.staging.transactions[name] = {
            part: _load_part(updates, f"staged/{at}/{part}", arrays) for part, updates in parts
        }
    committing.log = {one.commit.transaction: one for one in _load_packed(meta["log"], "log", arrays)}
    board.restore(meta["board"])
    eras.numbers = dict(meta.get("eras", ()))  # snapshots from before there were any have none


def digest(meta: dict[str, Any], arrays: Arrays) -> str:
    """A hash of what was dumped."""
    whole = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype.str} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def _dump_packed(value: Any, prefix: str, arrays: Arrays) -> list[Any]:
    data, found = pack(value)
    arrays.update({f"{prefix}/{at}": array for at, array in enumerate(found)})
    return [data, len(found)]


def _load_packed(dumped: list[Any], prefix: str, arrays: Arrays) -> Any:
    data, count = dumped
    return unpack(data, [arrays[f"{prefix}/{at}"] for at in range(count)])


def _dump_held(held: Held, prefix: str, arrays: Arrays) -> dict[str, Any]:
    arrays[f"{prefix}/values"] = held.values
    if held.row_versions is not None:
        arrays[f"{prefix}/row_versions"] = held.row_versions
    for name, array in held.state.items():
        arrays[f"{prefix}/state/{name}"] = array
    return {
        "holding": _dump_packed(held.holding, f"{prefix}/holding", arrays),
        "version": held.version,
        "state": list(held.state),
    }


def _load_held(dumped: dict[str, Any], prefix: str, arrays: Arrays) -> Held:
    held = Held(_load_packed(dumped["holding"], f"{prefix}/holding", arrays), dumped["version"])
    held.values = arrays[f"{prefix}/values"]
    if held.row_versions is not None:
        held.row_versions = arrays[f"{prefix}/row_versions"]
    held.state = {name: arrays[f"{prefix}/state/{name}"] for name in dumped["state"]}
    return held


def _dump_part(part: Part, prefix: str, arrays: Arrays) -> list[list[Any]]:
    for at, one in enumerate(part.values()):
        arrays[f"{prefix}/{at}/values"] = one.values
        if one.rows is not None:
            arrays[f"{prefix}/{at}/rows"] = one.rows
    return [[label, one.rows is not None] for label, one in part.items()]


def _load_part(dumped: list[list[Any]], prefix: str, arrays: Arrays) -> Part:
    return {
        label: Contribution(arrays[f"{prefix}/{at}/values"], arrays[f"{prefix}/{at}/rows"] if has_rows else None)
        for at, (label, has_rows) in enumerate(dumped)
    }
