"""The moments of inner optimizers, of which every trainer has its own: averaged where one state is to stand for all."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from shoal.comm.group import Group
from shoal.core.state import Piece


def average_moments(group: Group | None, share: float, pieces: Mapping[str, Piece]) -> dict[str, Piece]:
    """Those of `pieces` that all trainers have, averaged by their `share` of the samples of the last round. Collective
    in `group`, that of the trainers' leaders."""
    if group is None or group.size == 1:
        return {}
    mine = {
        name: piece
        for name, piece in pieces.items()
        if name.startswith("optimizer.") and piece.tensor.is_floating_point() and piece.tensor.dim() > 0
    }
    words = group.gather_bytes(json.dumps([share, sorted(mine)]).encode(), "listing moments")
    told = [json.loads(word) for word in words]
    names = sorted(set.intersection(*(set(have) for _, have in told)))
    total = sum(share for share, _ in told)
    if not names or total <= 0:
        return {}
    flat = torch.cat([mine[name].tensor.detach().reshape(-1).float() for name in names]).mul_(share / total)
    group.all_reduce(flat, "averaging moments")
    averaged, at = {}, 0
    for name in names:
        like = mine[name].tensor
        averaged[name] = Piece.whole(flat[at : at + like.numel()].view(like.shape).to(like.dtype))
        at += like.numel()
    return averaged
