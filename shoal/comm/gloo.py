"""How the members of a view are connected by gloo.

gloo's constructor blocks: in the store until each peer has said where it listens, then until all are connected. So it
runs in a thread of its own, which is given up as soon as the view is broken; it ends by itself within the limit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from shoal.comm.control import ControlPage
from shoal.comm.peer_sockets import PeerSockets, listening_ports, socket_inodes
from shoal.comm.unheard import Unheard
from shoal.core.errors import ConfigError, PeerLost, ShoalError
from shoal.core.teams import Part
from shoal.core.world import Member, View

CONNECT_S = 10.0  # all members have the view when they begin: who does not come in so long is lost
_GLOO_TIMEOUTS = 5  # gloo waits five times its timeout for a peer to connect
_LATE_S = 2.0
_GLANCE_S = 0.005
_STORE_GLANCE = timedelta(seconds=0.1)


@dataclass
class Connected:
    """A process group, with the ports that it listens on and its connections. `group` has no type: torch's stubs give
    a Backend no operations."""

    group: Any
    ports: frozenset[int]
    sockets: PeerSockets


def connect_gloo(
    view: View, part: Part, member: Member, control: ControlPage, store: Store, timeout_s: float
) -> Connected:
    """Connect `member` with all others of this part of `view`, bound to its address, or to loopback where it has none.

    `store` is used by another thread than the caller's. Raises `PeerLost` when the view breaks, or a peer does not come
    or connect within a few seconds.
    """
    limit_s = min(timeout_s, CONNECT_S)
    until = time.monotonic() + limit_s
    meeting, unheard = _MeetingStore(store, until), Unheard(view, part, member, control)
    result: Future[Connected] = Future()
    threading.Thread(
        target=_run, args=(result, part, member, meeting, limit_s), name="shoal-connect", daemon=True
    ).start()
    try:
        while not _done_within(result, _GLANCE_S):
            unheard.look(time.monotonic())
            if control.broken(view.number):
                raise PeerLost(f"view {view.number} was broken while its members were connecting")
            if time.monotonic() > until + limit_s + _LATE_S:  # by now gloo should have given up itself
                raise _not_connected(part, meeting, "no answer", limit_s)
        connected = result.result()
        unheard.heard()
        return connected
    except BaseException:
        meeting.given_up.set()
        result.add_done_callback(_discard)
        raise


def _done_within(result: Future[Connected], seconds: float) -> bool:
    return bool(wait([result], seconds).done)


def _run(result: Future[Connected], part: Part, member: Member, store: _MeetingStore, limit_s: float) -> None:
    """What the thread does: `result` gets the outcome."""
    try:
        result.set_result(_connect(part, member, store, limit_s))
        return
    except ShoalError as error:
        result.set_exception(error.with_traceback(None))
        return
    except Exception as error:
        reason = str(error).partition("\n")[0]
    # outside the handler: the traceback of the first error would keep gloo's thread and sockets alive
    result.set_exception(_not_connected(part, store, reason, limit_s))


def _not_connected(part: Part, store: _MeetingStore, reason: str, limit_s: float) -> PeerLost:
    absent = sorted(set(range(part.size)) - store.found_ranks())
    who = ", ".join(str(part.members[rank]) for rank in absent) or "one that had come"
    return PeerLost(f"could not connect with {who} within {limit_s:.1f} s: {reason}")


def _discard(result: Future[Connected]) -> None:
    """Nobody takes the group that was made after all."""
    if result.exception() is None:
        result.result().sockets.close()


def _connect(part: Part, member: Member, store: Store, limit_s: float) -> Connected:
    before = socket_inodes()
    where = {"hostname": member.address} if member.address else {"interface": "lo"}
    try:
        device = dist.ProcessGroupGloo.create_device(**where)
    except RuntimeError as error:
        raise ConfigError(
            f"worker {member.rank} on {member.host} cannot listen on {member.address or 'loopback'}: {error}"
        ) from error
    ports = listening_ports(before)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stubs
    options._devices = [device]
    options._timeout = timedelta(seconds=limit_s / _GLOO_TIMEOUTS)
    group = dist.ProcessGroupGloo(store, part.members.index(member), part.size, options)
    return Connected(group, ports, PeerSockets(before))


class _MeetingStore(Store):
    """The store, as gloo sees it: whoever waits in it for a key can be given up, and nothing is asked for twice."""

    def __init__(self, store: Store, until: float) -> None:
        super().__init__()
        self._store, self._until = store, until
        self._found: dict[str, bytes] = {}
        self.given_up = threading.Event()

    def found_ranks(self) -> set[int]:
        """The members that have said where they listen: the last part of a key is the rank."""
        return {int(key.rpartition("/")[2]) for key in list(self._found)}

    def set(self, key: str, value: bytes | str) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # bytes are taken, and given by gloo
        self._found[key] = value if isinstance(value, bytes) else value.encode()

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._await(key)

    def get(self, key: str) -> bytes:
        self._await(key)
        return self._found[key]

    def _await(self, key: str) -> None:
        while key not in self._found:
            if self.given_up.is_set():
                raise TimeoutError("given up")
            if time.monotonic() > self._until:
                raise TimeoutError("it did not come")
            with contextlib.suppress(RuntimeError):  # what stores raise when it takes too long
                self._store.wait([key], _STORE_GLANCE)
                self._found[key] = self._store.get(key)
