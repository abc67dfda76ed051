"""One writes, all read: what worker 0 sets reaches every copy."""

from __future__ import annotations

from shoal.core.errors import UserError
from shoal.store.client import Link
from shoal.store.modes.base import Membership, modes
from shoal.store.modes.peers import PeerMode

WRITER = 0


@modes.add("broadcast")
class BroadcastMode(PeerMode):
    """Worker 0 owns everything."""

    def __init__(self, membership: Membership) -> None:
        super().__init__(membership, "broadcast", posts=1)

    def writer(self, post: int) -> Link:
        if self.worker != WRITER:
            raise UserError(
                f"worker {self.worker} cannot change anything: in mode 'broadcast' only worker {WRITER} does. "
                "Use mode 'worker' if all shall"
            )
        return self.links[post]
