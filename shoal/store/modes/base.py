"""Where a store keeps its copies: the interface of modes.

A mode says whom a change of a post goes to, and whom a reading is asked of. The rest of a `KVStore` is the same in all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.comm.keys import ClientKeys, RunKeys
from shoal.core.registry import Registry
from shoal.store.client import Link
from shoal.store.description import Encrypt, FleetDescription


@dataclass(frozen=True)
class Membership:
    """What a mode is made from. `describe` and `keys` are for servers that are there; `address` and `run_keys` for
    workers that meet there and have no servers."""

    name: str
    worker: int | None
    workers: int | None
    deadline_s: float
    describe: Callable[[], FleetDescription] | None = None
    keys: ClientKeys | None = None
    address: str = ""
    run_keys: RunKeys | None = None
    encrypt: Encrypt = "auto"
    on_lost_state: Callable[[], None] = lambda: None


class Mode(ABC):
    """Ready when its constructor returns."""

    posts: int  # over how many places the keys are spread
    links: list[Link]  # the first ones hold the posts, in order

    @abstractmethod
    def writer(self, post: int) -> Link:
        """Whom changes of a post's keys go to; raises `UserError` where this worker may not make any."""

    @abstractmethod
    def reader(self, post: int, worker: int | None) -> tuple[Link, dict[str, Any]]:
        """Who is asked for a post's values, and with what in the head; `worker`: for that worker's own copy."""

    def desk(self) -> Link:
        """Who keeps directory, rounds and board."""
        return self.links[0]

    @abstractmethod
    def close(self) -> None:
        """Give everything back. May be called twice."""


modes: Registry[Callable[[Membership], Mode]] = Registry("mode of the store")
