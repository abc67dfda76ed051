"""How the parts of a shard say no to each other."""

from __future__ import annotations

from shoal.store.answers import Reason


class Refusal(Exception):  # noqa: N818 - control flow within a shard: it becomes the answer `Refused`
    """Raised before anything is changed."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason: Reason = reason
        self.detail = detail
        super().__init__(detail)
