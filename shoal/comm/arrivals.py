"""Who of a host has come to which operation of a group, for errors that name the missing.

A process group of torch does not tell. So every member counts the operations that it enters, where its neighbours can
look: in the group's slice of the host's shared memory.
"""

from __future__ import annotations

from shoal.comm.control import ControlPage
from shoal.comm.shm_segment import LINE_BYTES, Window
from shoal.core.teams import Part
from shoal.core.world import Member, View

_WORDS = LINE_BYTES // 8


class Arrivals:
    """The counts of `member` and of those members of `part` that share its host. A member that has no neighbours there
    takes no shared memory."""

    def __init__(self, view: View, part: Part, member: Member, control: ControlPage) -> None:
        neighbours = part.neighbours(member)
        self._part, self._mine = part, neighbours.index(member)
        size_bytes = len(neighbours) * LINE_BYTES
        alone = len(neighbours) == 1
        memory = bytearray(size_bytes) if alone else Window(control.fd, view.number, part.number).take(size_bytes)
        words = memoryview(memory)[:size_bytes].cast("q")
        self._counts = {one.rank: words[at * _WORDS : (at + 1) * _WORDS] for at, one in enumerate(neighbours)}
        self._own = self._counts[member.rank]

    def arrive(self) -> int:
        """This member enters its next operation; returns the number of it."""
        self._own[0] += 1
        return self._own[0]

    def missing(self, number: int) -> list[int]:
        """The members of this host that have not come to operation `number`; if they have, those of other hosts. By
        their ranks in the view."""
        absent = [rank for rank, count in self._counts.items() if count[0] < number]
        return absent or [rank for rank in self._part.ranks if rank not in self._counts]
