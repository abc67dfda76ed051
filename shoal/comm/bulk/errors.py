"""How a request can end other than with its answer. A connection that is gone is `PeerLost`, as everywhere."""

from __future__ import annotations

from shoal.core.errors import PeerLost, ShoalError, UserError


class RequestTimeout(ShoalError):  # noqa: N818 - it names the event
    """No answer came in time. The connection stands: a late answer is thrown away."""

    def __init__(self, peer: str, what: str, elapsed_s: float) -> None:
        self.peer, self.what, self.elapsed_s = peer, what, elapsed_s
        super().__init__(f"waited {elapsed_s:.1f} s for {peer} to answer {what}, in vain")


class RequestFailed(ShoalError):  # noqa: N818
    """The other side could not do what was asked. `kind` is the name of the error over there, `reason` its text."""

    def __init__(self, peer: str, kind: str, reason: str) -> None:
        self.peer, self.kind, self.reason = peer, kind, reason
        super().__init__(f"{peer}: {reason or kind}")


class EntryRefused(PeerLost, UserError):  # noqa: N818
    """The server does not let this client in: it has another key."""


class BadMessage(ShoalError):  # noqa: N818
    """What was to be sent, or what has arrived, is no message within the limits."""


class Ended(Exception):  # noqa: N818
    """A connection is over. Within the transport only: who uses it sees `PeerLost`."""
