"""No servers: every worker has a copy of everything, and owns a share of the keys."""

from __future__ import annotations

from shoal.store.client import Link
from shoal.store.modes.base import Membership, modes
from shoal.store.modes.peers import PeerMode


@modes.add("worker")
class WorkerMode(PeerMode):
    """Everybody may change everything."""

    def __init__(self, membership: Membership) -> None:
        super().__init__(membership, "worker", posts=None)

    def writer(self, post: int) -> Link:
        return self.links[post]
