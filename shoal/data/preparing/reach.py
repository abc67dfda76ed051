"""Whether anybody is there at all: asked first, because clusters' own libraries take minutes to find out."""

from __future__ import annotations

import socket

_ANSWER_S = 5.0


def knock(address: str) -> None:
    """Raises `OSError` if nobody listens at ``host:port`` or ``scheme://host:port``; of other addresses nothing is
    known."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _ANSWER_S).close()
