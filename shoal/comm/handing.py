"""Handing tensors from one worker to all others: small ones together, large ones as they lie, without a copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.comm.group import Group

_SMALL_BYTES = 1 << 20
_ALIGNMENT = 16


def hand_over(
    group: Group, source: int, head: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Everyone gets `head` (plain JSON) and `tensors` of the member with rank `source`; what the others give is not
    looked at. Collective. On the source the tensors are its own; they may be views of a model that trains on."""
    is_source = group.rank == source
    mine = {name: tensor.detach() for name, tensor in tensors.items()} if is_source else {}
    listed = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in mine.items()]
    word = json.dumps([dict(head), listed]).encode() if is_source else b""
    told, listed = json.loads(group.gather_bytes(word, "telling what comes")[source])
    if not is_source:
        mine = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in listed}
    overwrite(group, source, mine)
    return told, mine


def overwrite(group: Group, source: int, tensors: Mapping[str, Tensor]) -> None:
    """Everyone's `tensors`, of the same names and shapes, become those of the member with rank `source`. Collective."""
    small = [tensor for tensor in tensors.values() if tensor.nbytes < _SMALL_BYTES]
    _broadcast_together(group, source, small)
    for name, tensor in tensors.items():
        if tensor.nbytes >= _SMALL_BYTES:
            group.broadcast(tensor, source, f"copying {name}")


def _broadcast_together(group: Group, source: int, tensors: list[Tensor]) -> None:
    """Many small tensors in one operation."""
    places, end = [], 0
    for tensor in tensors:
        places.append(end)
        end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    flat = torch.empty(end, dtype=torch.uint8)
    rows = [
        flat[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for at, tensor in zip(places, tensors, strict=True)
    ]
    if group.rank == source:
        for row, tensor in zip(rows, tensors, strict=True):
            row.copy_(tensor)
    if end:
        group.broadcast(flat, source, "copying what is small")
    if group.rank != source:
        for row, tensor in zip(rows, tensors, strict=True):
            tensor.copy_(row)
