"""Bulk messages between processes: a small head and NumPy arrays, asked and answered over one connection.

`BulkServer` listens and answers, `BulkClient` asks. On one host arrays travel through shared memory, between hosts over
TCP in chunks, each chunk authenticated and (by default) encrypted. Nothing that arrives is unpickled.

Importing this package imports neither torch nor the libraries for sockets and ciphers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.comm.bulk.errors import BadMessage, EntryRefused, RequestFailed, RequestTimeout

if TYPE_CHECKING:
    from shoal.comm.bulk.client import BulkClient
    from shoal.comm.bulk.message import Message
    from shoal.comm.bulk.peer import Peer, Reply
    from shoal.comm.bulk.server import BulkServer

__all__ = [
    "BadMessage",
    "BulkClient",
    "BulkServer",
    "EntryRefused",
    "Message",
    "Peer",
    "Reply",
    "RequestFailed",
    "RequestTimeout",
]

_HOMES = {"BulkClient": "client", "BulkServer": "server", "Message": "message", "Peer": "peer", "Reply": "peer"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
