"""Leases on the tasks of a round: whoever is free takes the next one, through a counter that the view shares.

Every trainer begins with the task of its own number, which it need not ask for. A lease dies with its view: what its
holder has not reported when the view breaks is leased again in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from shoal.comm.group import Group

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Leases:
    """The tasks that trainer `trainer` of `trainers` takes, by number. A trainer may be a `team` of workers: its first
    member leases, and tells the others."""

    def __init__(self, open_store: Callable[[], Store] | None, trainer: int, trainers: int, team: Group) -> None:
        self._open = open_store
        self._trainer, self._trainers, self._team = trainer, trainers, team
        self._opened: Store | None = None

    def take(self, key: str, count: int) -> Iterator[int]:
        """Lease tasks ``0 .. count-1`` one after the other, until none is left. `key` names the round: no other of
        this view may have had it. Drawing the next one is collective within the team."""
        number, taken = self._trainer, 0
        while number < count:
            yield number
            number = self._next(key, taken)
            taken += 1

    def _next(self, key: str, taken: int) -> int:
        number = self._trainers + taken
        if self._trainers > 1:
            told = b""
            if self._team.rank == 0:
                told = str(self._trainers + int(self._shared().add(key, 1)) - 1).encode()
            number = int(self._team.gather_bytes(told, "the team's next task")[0])
        return number

    def _shared(self) -> Store:
        if self._opened is None:
            assert self._open is not None, "several workers share a store"
            self._opened = self._open()
        return self._opened
