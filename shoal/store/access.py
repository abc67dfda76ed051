"""How a member of a run gets to its servers: where they are, asked anew whenever that is called, and the key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.comm.keys import ClientKeys
from shoal.store.description import FleetDescription


@dataclass(frozen=True)
class FleetAccess:
    """``KVStore(access, key=access.keys)`` is a client of the fleet. May be called from any thread; `describe` waits up
    to a deadline of its own for servers that are about to start, and raises `ShoalError` that says for what."""

    describe: Callable[[], FleetDescription]
    keys: ClientKeys
    number: int = 0  # tells apart runs that share servers: one that comes later has a higher one

    def __call__(self) -> FleetDescription:
        return self.describe()
