"""Rows of tables, as workers of a team tell each other of them: only those that a batch has touched travel."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Touched = tuple[Tensor, Tensor]  # the numbers of rows, and as many rows of values

_NOTHING = -1
_COUNT = struct.Struct("<q")


def touched_rows(grad: Tensor) -> Touched:
    """What a gradient of a table says: the rows of a sparse one, each once, or all of a dense one."""
    if not grad.is_sparse:
        return torch.arange(grad.shape[0]), grad.contiguous()
    grad = grad.coalesce()
    return grad.indices()[0], grad.values().contiguous()


def pack(tables: Sequence[Touched | None]) -> bytes:
    """One after the other; None for a table of which there is nothing to be said."""
    parts = []
    for one in tables:
        parts.append(_COUNT.pack(_NOTHING if one is None else len(one[0])))
        if one is not None:
            parts += [one[0].numpy().tobytes(), one[1].numpy().tobytes()]
    return b"".join(parts)


def unpack(payload: bytes, likes: Sequence[Tensor]) -> list[Touched | None]:
    """What was packed for tables whose rows are like those of `likes`."""
    found: list[Touched | None] = []
    at = 0

    def take(count: int, dtype: torch.dtype) -> Tensor:
        nonlocal at
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        taken = np.frombuffer(payload, kind, count, at)
        at += taken.nbytes
        return torch.from_numpy(taken.copy())  # it need not be aligned where it lies

    for like in likes:
        (count,) = _COUNT.unpack_from(payload, at)
        at += _COUNT.size
        if count == _NOTHING:
            found.append(None)
        else:
            rows = take(count, torch.int64)
            found.append((rows, take(count * like[0].numel(), like.dtype).view(count, *like.shape[1:])))
    return found


def add_up(tables: Sequence[Touched | None], shape: torch.Size) -> Tensor | None:
    """The sum, sparse, of what several say about one table of this shape, in their order; None if nobody says
    anything."""
    said = [one for one in tables if one is not None]
    if not said:
        return None
    rows, values = torch.cat([rows for rows, _ in said]), torch.cat([values for _, values in said])
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, shape, check_invariants=False).coalesce()
