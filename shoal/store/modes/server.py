"""Central copies: every key lies on servers, cut and spread over them."""

from __future__ import annotations

from typing import Any

from shoal.core.errors import UserError
from shoal.store.client import Link
from shoal.store.modes.base import Membership, Mode, modes
from shoal.store.session import Session


@modes.add("server")
class ServerMode(Mode):
    """Servers that somebody else has started."""

    def __init__(self, membership: Membership) -> None:
        if membership.describe is None or membership.keys is None:
            raise UserError("a store on servers needs to know where they are: give the directory of `shoal kvstore`")
        described = membership.describe()
        self._session = Session(
            membership.describe, membership.keys, membership.name, membership.encrypt, membership.on_lost_state
        )
        self.posts = len(described.servers)
        self.links = [Link(self._session, number, addresses) for number, addresses in enumerate(described.servers)]

    def writer(self, post: int) -> Link:
        return self.links[post]

    def reader(self, post: int, worker: int | None) -> tuple[Link, dict[str, Any]]:
        if worker is not None:
            raise UserError(
                f"worker {worker} has no copy of its own: in mode 'server' all read what the servers hold. "
                "Leave `worker` out, or use mode 'worker'"
            )
        return self.links[post], {"p": post}

    def close(self) -> None:
        self._session.close()
