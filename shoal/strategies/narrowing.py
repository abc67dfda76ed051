"""Sums in float64 become gradients in the type of the parameters, in the memory in which they lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.strategies.memory import view_like

_PIECE = 1 << 16  # elements that are taken aside at a time: they stay in the cache


class Narrowing:
    """Of `wide`, flat tensors of float64 that lie apart, one for each of `like`. Beside them it needs memory for one
    piece only."""

    def __init__(self, wide: Sequence[Tensor], like: Sequence[Tensor]) -> None:
        # a narrow element never lies behind the wide one that it is made of, so what is overwritten has been read
        self.flats = [flat.view(one.dtype)[: one.numel()] for flat, one in zip(wide, like, strict=True)]
        self._narrow = [view_like(flat, one) for flat, one in zip(self.flats, like, strict=True)]
        self._rounds: list[tuple[list[Tensor], list[Tensor], list[Tensor]]] = []
        aside: dict[torch.dtype, Tensor] = {}
        room = 0
        for flat, narrow in zip(wide, self.flats, strict=True):
            if flat.dtype == narrow.dtype:
                continue
            if narrow.dtype not in aside:
                aside[narrow.dtype] = torch.empty(_PIECE, dtype=narrow.dtype, device=narrow.device)
            for start in range(0, flat.numel(), _PIECE):
                stop = min(start + _PIECE, flat.numel())
                if not self._rounds or stop - start > room:
                    self._rounds.append(([], [], []))
                    room = _PIECE
                taken = aside[narrow.dtype][_PIECE - room :][: stop - start]
                for part, tensor in zip(self._rounds[-1], (flat[start:stop], taken, narrow[start:stop]), strict=True):
                    part.append(tensor)
                room -= stop - start

    def narrow(self) -> list[Tensor]:
        """Round each value once; returns them in the shapes of `like`. The wide ones are gone then."""
        for wide, aside, narrow in self._rounds:
            torch._foreach_copy_(aside, wide)
            torch._foreach_copy_(narrow, aside)
        return self._narrow
