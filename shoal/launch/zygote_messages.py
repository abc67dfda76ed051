"""What a launcher, the reaper of its workers and the zygote say to each other: one JSON object a message, over sockets
that keep messages whole (SOCK_SEQPACKET) and carry descriptors."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass

MESSAGE_BYTES = 65536
MAX_DESCRIPTORS = 16


@dataclass(frozen=True)
class Fork:
    """Launcher to reaper, and reaper to a spare: become a child that calls `entry` (``module:function``) with the
    descriptors that come with this."""

    key: int
    entry: str


@dataclass(frozen=True)
class Signal:
    """Launcher to reaper: send a signal to a child and to what it has started."""

    key: int
    number: int


@dataclass(frozen=True)
class End:
    """Launcher to reaper: kill whatever is left, and end."""


@dataclass(frozen=True)
class Spares:
    """Reaper to zygote: fork a child for each descriptor that comes with this."""


@dataclass(frozen=True)
class Tried:
    """Zygote to reaper: it has done so. Where a child could not be had, nobody holds its descriptor any more."""


@dataclass(frozen=True)
class Here:
    """A spare to the reaper, whose child it is now: it waits for its `Fork`."""

    pid: int


@dataclass(frozen=True)
class Ready:
    """Zygote to reaper to launcher: it has imported what it should, in so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Forked:
    """Reaper to launcher: a child has begun."""

    key: int
    pid: int


@dataclass(frozen=True)
class Exited:
    """Reaper to launcher: a child has ended. `code` is its exit status, or minus the signal that killed it. `at_s`:
    monotonic clock."""

    key: int
    code: int
    at_s: float


@dataclass(frozen=True)
class ZygoteRestarted:
    """Reaper to launcher: the zygote has ended with `code` and is started again, for the `times`-th time. Its children
    live on."""

    code: int
    times: int


Message = Fork | Signal | End | Spares | Tried | Here | Ready | Forked | Exited | ZygoteRestarted
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Fork, Signal, End, Spares, Tried, Here, Ready, Forked, Exited, ZygoteRestarted)
}


def send(channel: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message with copies of `fds`. Raises what the socket raises."""
    data = json.dumps({"kind": type(message).__name__, **asdict(message)}).encode()
    socket.send_fds(channel, [data], list(fds))


def receive(channel: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and its descriptors; None where the other end is gone. Raises BlockingIOError where the socket
    does not wait and there is none."""
    try:
        data, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, MAX_DESCRIPTORS, flags=socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # it is gone, and has left words of ours unread
        return None, []
    if not data:
        return None, []
    fields = json.loads(data)
    return _KINDS[fields.pop("kind")](**fields), fds
