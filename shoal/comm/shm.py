"""A group of processes on one host that share memory.

Collectives copy through two slots of a bounded size for each rank, used in turn. One round: everybody writes
its own part of the slot, passes a barrier, reads the others' parts. Two slots make one barrier a round
enough: whoever writes a slot for the second time has passed the barrier of the round between, which everybody
else only reached after it had read the slot. Sums are taken in the order of ranks, so they do not depend on
who was first.

Visibility rests on the total store order of x86-64: a rank stores data, then its sequence number; whoever
sees the number sees the data. (Routines that use non-temporal stores fence them before they return.)
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.comm.control import ControlPage
from shoal.comm.group import BucketReducer, BucketSpec, Group
from shoal.comm.patience import Patience
from shoal.comm.shm_reducer import ShmReducer, share
from shoal.comm.shm_segment import LINE_BYTES, Window, round_up, unsupported
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.teams import Part
from shoal.core.world import Member, View

SLOT_BYTES = 4 << 20  # a barrier for each: larger than a cache, because where cores are shared barriers are dear
SMALL_BYTES = 1 << 14  # up to here everybody adds everything up: one barrier instead of two
_SLOTS = 2
_SEQUENCE, _CLOSED, _LENGTH = 0, 1, 2  # words of a rank; two of _LENGTH, one a slot
_WORDS = LINE_BYTES // 8


class ShmGroup(Group):
    """The group of `view`, or of a part of it, whose members inherited the same control page, in the process that is
    `member`. The constructor does not wait. The numbers of view and part tell groups apart: no earlier one had them.
    """

    def __init__(
        self, view: View, member: Member, control: ControlPage, timeout_s: float, part: Part | None = None
    ) -> None:
        reason = unsupported()
        if reason is not None:
            raise ConfigError(f"comm.backend=shm cannot be used: {reason}. Use comm.backend=gloo")
        whole = Part.whole(view)
        part = part or whole
        rank, size = part.members.index(member), part.size
        self.rank, self.size, self.backend = rank, size, "shm"
        crowd = len(whole.neighbours(member))
        self._patience = Patience(control, member.seat, crowd, timeout_s, view.number, part.ranks)
        self._window = Window(control.fd, view.number, part.number)
        header_bytes = round_up(size * LINE_BYTES, mmap.PAGESIZE)
        self._range = self._window.take(header_bytes + _SLOTS * size * SLOT_BYTES)
        words = memoryview(self._range)[: size * LINE_BYTES].cast("q")
        self._rows = [words[r * _WORDS : (r + 1) * _WORDS] for r in range(size)]
        self._own = self._rows[rank]
        if any(self._own):
            raise ShoalError(f"part {part.number} of view {view.number} had a group before: each has one at most")
        self._others = [row for r, row in enumerate(self._rows) if r != rank]
        memory = torch.from_numpy(np.frombuffer(self._range, dtype=np.uint8))[header_bytes:]
        slots = memory.view(_SLOTS, size, SLOT_BYTES)
        self._areas = {torch.uint8: [list(slot.unbind()) for slot in slots.unbind()]}
        self._sequence = 0
        self._round = 0
        self._closed = False

    def all_reduce(self, tensor: Tensor, what: str) -> None:
        since = time.monotonic()
        flat = tensor.detach().contiguous().view(-1)
        elements = SLOT_BYTES // flat.element_size()
        for start in range(0, flat.numel(), elements):
            self._add_up(flat[start : start + elements], what, since)
        if not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))

    def _add_up(self, part: Tensor, what: str, since: float) -> None:
        numel = part.numel()
        areas = [area[:numel] for area in self._next_slot(part.dtype)]
        areas[self.rank].copy_(part)
        self._meet(what, since)
        if self.size == 1 or part.nbytes <= SMALL_BYTES:
            _sum_into(part, areas)
            return
        begin, end = share(numel, self.rank, self.size)
        if begin < end:
            mine = part[begin:end]
            _sum_into(mine, [area[begin:end] for area in areas])
            # this rank's share of its own area is read by nobody else before the barrier
            areas[self.rank][begin:end].copy_(mine)
        self._meet(what, since)
        for other, area in enumerate(areas):
            begin, end = share(numel, other, self.size)
            if other != self.rank and begin < end:
                part[begin:end].copy_(area[begin:end])

    def broadcast(self, tensor: Tensor, source: int, what: str) -> None:
        since = time.monotonic()
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        for start in range(0, flat.numel(), SLOT_BYTES):
            part = flat[start : start + SLOT_BYTES]
            area = self._next_slot(torch.uint8)[source][: part.numel()]
            if self.rank == source:
                area.copy_(part)
            self._meet(what, since)
            if self.rank != source:
                part.copy_(area)
        if self.rank != source and not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        since = time.monotonic()
        gathered = [bytearray() for _ in range(self.size)]
        start, longest = 0, 1
        while start < longest:  # the first round tells how long the longest payload is
            slot = self._round % _SLOTS
            areas = [area.numpy() for area in self._next_slot(torch.uint8)]
            piece = np.frombuffer(payload, dtype=np.uint8)[start : start + SLOT_BYTES]
            areas[self.rank][: len(piece)] = piece
            self._own[_LENGTH + slot] = len(payload)
            self._meet(what, since)
            lengths = [row[_LENGTH + slot] for row in self._rows]
            for whole, area, length in zip(gathered, areas, lengths, strict=True):
                whole.extend(area[: max(length - start, 0)].data)
            longest = max(lengths)
            start += SLOT_BYTES
        return [bytes(whole) for whole in gathered]

    def reducer(self, buckets: Sequence[BucketSpec], facts: int) -> BucketReducer:
        return ShmReducer(self._window, self._patience, self.rank, self.size, buckets, facts)

    def barrier(self, what: str) -> None:
        self._meet(what, time.monotonic())

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._own[_CLOSED] = 1
        if all(row[_CLOSED] for row in self._rows):
            self._range.madvise(mmap.MADV_REMOVE)
        # maps go when their last reference goes: a tensor that the caller still has stays valid
        del self._rows, self._own, self._others, self._areas, self._range

    def _next_slot(self, dtype: torch.dtype) -> list[Tensor]:
        """Every rank's area for the next round, in the slot whose turn it is."""
        if self._closed:
            raise ShoalError("this group is closed")
        slot = self._round % _SLOTS
        self._round += 1
        if dtype not in self._areas:
            areas = self._areas[torch.uint8]
            self._areas[dtype] = [[area.view(dtype) for area in slot_areas] for slot_areas in areas]
        return self._areas[dtype][slot]

    def _meet(self, what: str, since: float) -> None:
        """The barrier: say that this rank is here, wait until all are."""
        self._sequence += 1
        self._own[_SEQUENCE] = self._sequence
        if not self._all_here():
            self._patience.wait(self._all_here, self._missing, what, since)

    def _all_here(self) -> bool:
        sequence = self._sequence
        return all(row[_SEQUENCE] >= sequence for row in self._others)

    def _missing(self) -> list[int]:
        return [r for r, row in enumerate(self._rows) if row[_SEQUENCE] < self._sequence]


def _sum_into(target: Tensor, parts: Sequence[Tensor]) -> None:
    """`target` = the sum of `parts` in their order. It may be none of them but the only one."""
    if len(parts) == 1:
        target.copy_(parts[0])
        return
    torch.add(parts[0], parts[1], out=target)
    for part in parts[2:]:
        target.add_(part)
