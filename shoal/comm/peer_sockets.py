"""The sockets that a process group has opened to its peers, so that a thread that waits inside it can be freed.

Nothing that gloo offers frees a thread that waits for a frozen or unreachable peer before its timeout. Shutting its
sockets down does, at once and from any thread. gloo does not tell which they are: they are found among the descriptors
of this process, and held by duplicates, because a number may be another file's by the time it is needed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Container, Iterable
from pathlib import Path


def socket_inodes() -> frozenset[int]:
    """The sockets of this process, by what stays theirs alone while they are open."""
    found = set()
    for fd in _descriptors():
        with contextlib.suppress(OSError):
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                found.add(status.st_ino)
    return frozenset(found)


def _descriptors() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]


def _opened_since(before: Container[int]) -> Iterable[socket.socket]:
    """Duplicates of the TCP sockets that are not among those `before`."""
    seen = set()
    for fd in _descriptors():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself, or one closed meanwhile
            copy = os.dup(fd)
            status = os.fstat(copy)
            if not stat.S_ISSOCK(status.st_mode) or status.st_ino in before or status.st_ino in seen:
                os.close(copy)
                continue
            seen.add(status.st_ino)
            one = socket.socket(fileno=copy)
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                yield one
            else:
                one.close()


def listening_ports(before: Container[int]) -> frozenset[int]:
    """The ports that this process listens on and did not listen on `before`."""
    ports = set()
    for one in _opened_since(before):
        with one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.add(int(one.getsockname()[1]))
    return frozenset(ports)


class PeerSockets:
    """Connections that were made since `before`. All methods may be called from any thread."""

    def __init__(self, before: Container[int]) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[socket.socket, tuple[int, int]] = {}  # with local and remote port
        for one in _opened_since(before):
            try:
                self._sockets[one] = (one.getsockname()[1], one.getpeername()[1])
            except OSError:  # not connected
                one.close()

    def keep(self, own: Container[int], peers: Container[int]) -> None:
        """Forget the connections that are neither to the ports `own` of this process nor to the ports `peers` of
        others: another thread made them."""
        with self._lock:
            for one, (local, remote) in list(self._sockets.items()):
                if local not in own and remote not in peers:
                    one.close()
                    del self._sockets[one]

    def shut_down(self) -> None:
        """End the connections, in both directions. Whoever reads or writes gets an error."""
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):  # the peer has ended it
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of them; they stay as they are. May be called twice."""
        with self._lock:
            for one in self._sockets:
                one.close()
            self._sockets.clear()

    def __len__(self) -> int:
        return len(self._sockets)
