"""Where the workers of a run find each other before they are connected: no port that anyone could join.

It is a nameless file (memfd) of the process that calls `make_rendezvous`, reached by its descriptor in /proc:
only processes of the same user can open it, and nothing is left however that process ends. It must therefore
outlive the making of groups. Importing this module does not import torch, so the launcher can.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING

from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_ADDRESS = re.compile(r"/proc/(\d+)/fd/(\d+)")


def make_rendezvous() -> str:
    """Make a place to meet and return its address, for processes of this user on this host."""
    return f"/proc/{os.getpid()}/fd/{os.memfd_create('shoal-rendezvous', os.MFD_CLOEXEC)}"


def remove_rendezvous(rendezvous: str) -> None:
    """Take the place down; to be called once, by the process that made it."""
    address = _ADDRESS.fullmatch(rendezvous)
    # in a child of the maker the descriptor may be another file by now
    if address is not None and int(address[1]) == os.getpid():
        os.close(int(address[2]))


def open_store(rendezvous: str, prefix: str, size: int, timeout_s: float) -> Store:
    """The store of one group of `size` members. `prefix` keeps groups apart that meet at the same place."""
    from torch._C._distributed_c10d import FileStore, PrefixStore

    try:
        # -1 members: the store must not remove the file after so many have left it, other groups will come
        store = FileStore(rendezvous, -1)
        store.set_timeout(timedelta(seconds=timeout_s))
        return PrefixStore(f"{prefix}/{size}", store)
    except RuntimeError as error:
        raise ShoalError(f"cannot open the rendezvous {rendezvous}: {error}") from error
