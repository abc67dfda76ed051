"""Whether workers that must hold the same model do: now and then they compare a checksum of a piece of it.

The checksum travels with what workers tell each other anyway. Each time it is of another piece, so that it costs next
to nothing however large the model is: whatever changes a model on one worker alone shows in all of it soon.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from shoal.core.errors import ReplicasDiffer
from shoal.core.world import View

EVERY = 16  # steps between two looks
_PIECE = 1 << 14  # elements looked at in one of them
_NEAR = 1e-3  # of the norm: machines of different kinds round differently, and that grows
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST = 1 << 52  # whole numbers up to here are exact in float64

Sight = tuple[float, float]  # a checksum, and by how much that of another worker may differ from it
NOTHING: Sight = (0.0, 0.0)


class Likeness:
    """Looks at the parameters and running statistics of `module`. Workers of one host must agree on every bit of them;
    those of several need not be of one kind, and may differ by rounding."""

    def __init__(self, module: nn.Module, view: View, device: str) -> None:
        self._exact = len({member.host for member in view.members}) <= 1 and device == "cpu"
        self._pieces = _cut([*module.parameters(), *(b for b in module.buffers() if _is_combined(b))])

    def see(self, step: int) -> Sight:
        """What this worker holds before `step`, if it is time to look; the same piece on every worker."""
        if step % EVERY or not self._pieces:
            return NOTHING
        return self.look(step // EVERY)

    @torch.no_grad()
    def look(self, number: int) -> Sight:
        """What this worker holds, whatever the time: a piece of it, by `number`."""
        parts = [tensor.detach().flatten()[start:stop] for tensor, start, stop in self._pieces[number % self.count]]
        if self._exact:
            total = 0
            for part in parts:
                total = (31 * total + int(part.view(_BITS.get(part.element_size(), torch.int64)).sum())) % _MOST
            return float(total), 0.0
        flat = torch.cat([part.float() for part in parts]).cpu()
        return float(flat @ _signs()[: len(flat)]), _NEAR * float(flat.norm())

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return max(1, len(self._pieces))


@cache
def _signs() -> Tensor:
    """The same everywhere. A sum with random signs is about as large as the norm, whatever the values are."""
    return torch.randint(2, (_PIECE,), generator=torch.Generator().manual_seed(0)).mul(2).sub(1).float()


def _is_combined(buffer: Tensor) -> bool:
    """Whether workers combine what their passes do to it: what they do not may differ."""
    return buffer.is_floating_point() or (buffer.dtype == torch.int64 and buffer.numel() == 1)


def _cut(tensors: Sequence[Tensor]) -> list[list[tuple[Tensor, int, int]]]:
    """All elements, in pieces of at most `_PIECE`."""
    pieces: list[list[tuple[Tensor, int, int]]] = []
    room = 0
    for tensor in tensors:
        start = 0
        while start < tensor.numel():
            if room == 0:
                pieces.append([])
                room = _PIECE
            stop = min(tensor.numel(), start + room)
            pieces[-1].append((tensor, start, stop))
            room -= stop - start
            start = stop
    return pieces


def compare(sights: Sequence[Sight], view: View, step: int) -> None:
    """Raise `ReplicasDiffer` where not all workers, in the order of ranks, see the same: on all of them, naming those
    that differ from most. Where there is no majority, the first worker is right."""
    odd = outliers(sights)
    if odd:
        most = next(rank for rank in range(len(sights)) if rank not in odd)
        raise ReplicasDiffer(step, [str(view.members[rank]) for rank in odd], str(view.members[most]))


def outliers(sights: Sequence[Sight]) -> list[int]:
    """The ranks of those who see something else than most. Pure."""

    def unlike(one: Sight) -> list[int]:
        return [rank for rank, other in enumerate(sights) if abs(one[0] - other[0]) > max(one[1], other[1])]

    return min((unlike(one) for one in sights), key=len, default=[])
