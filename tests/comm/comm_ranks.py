"""What ranks of these tests share. They import it, so it does not import pytest."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from torch._C._distributed_c10d import Store

from shoal.comm.control import ControlPage
from shoal.comm.group import Group
from shoal.comm.hierarchical import HierarchicalGroup
from shoal.comm.select import make_group
from shoal.comm.shm import ShmGroup
from shoal.core.errors import CollectiveTimeout
from shoal.core.teams import Part, leaders, teams
from shoal.core.world import Member, View
from shoal.launch.session import Session

BACKENDS = ("shm", "gloo")


@dataclass(frozen=True)
class Failure:
    """How a rank failed: the name of its error, whom it missed, and the traceback."""

    kind: str
    missing: tuple[int, ...]
    account: str


def view_of(session: Session, number: int = 1, ranks: Sequence[int] | None = None) -> View:
    """View `number`, of all ranks of the harness or only of some; keys and seats are the harness's ranks."""
    whole = session.attendance.enter(number - 1)
    members = whole.members if ranks is None else [whole.members[rank] for rank in ranks]
    return View(number, tuple(replace(member, rank=rank) for rank, member in enumerate(members)))


def join(
    session: Session, backend: str, timeout_s: float = 30.0, number: int = 1, ranks: Sequence[int] | None = None
) -> Group:
    """The group of a view (see `view_of`); for shared memory also if that has only one member.

    A backend may have a layout, digits that are seats: in "shm 02/13" each worker has the group of its own part of the
    view, in "hierarchical 02/13" there are two hosts.
    """
    view, key = view_of(session, number, ranks), session.attendance.key
    name, _, layout = backend.partition(" ")
    if name == "hierarchical":
        return join_hosts(session, on_hosts(view, layout), timeout_s)
    store = partial(session.attendance.store, view, timeout_s)
    member = view.member(key)
    assert member is not None
    if layout:
        mine = 1 + layout.split("/").index(part_of(layout, member))
        part = Part(mine, tuple(one for one in view.members if part_of(layout, one) == part_of(layout, member)))
        return make_group(view, key, session.control, name, store, timeout_s, part=part)
    if backend == "shm" and view.size == 1:
        return ShmGroup(view, member, session.control, timeout_s)
    return make_group(view, key, session.control, backend, store, timeout_s)


def part_of(layout: str, member: Member) -> str:
    """The part of a layout that has this member."""
    return next(part for part in layout.split("/") if str(member.seat) in part)


def on_hosts(view: View, layout: str) -> View:
    """The same view, as if each part of the layout were a host."""
    names = {member: f"host-{layout.split('/').index(part_of(layout, member))}" for member in view.members}
    members = [replace(one, host=name, agent=name, address="127.0.0.1") for one, name in names.items()]
    return View(view.number, tuple(members))


def join_hosts(session: Session, view: View, timeout_s: float) -> Group:
    """The group of a view over hosts: in two levels also where one would do. As these hosts have in truth one memory,
    two teams that both use it are put together here, as parts of the view."""
    store = partial(session.attendance.store, view, timeout_s)
    make = partial(make_group, view, session.attendance.key, session.control, "auto", store, timeout_s)
    hosts, member = teams(view, "host"), view.member(session.attendance.key)
    assert member is not None
    if len(hosts) == 1 or sum(len(host) > 1 for host in hosts) == 1:
        return make()
    at = next(number for number, host in enumerate(hosts) if member in host)
    inner = make(part=Part(2 + at, hosts[at]))
    outer = make(part=Part(1, leaders(hosts))) if member == hosts[at][0] else None
    return HierarchicalGroup(hosts, member, inner, outer)


def place_in(session: Session, backend: str) -> tuple[int, int]:
    """The rank and size that the group of all ranks should have."""
    name, _, layout = backend.partition(" ")
    if not layout or name == "hierarchical":
        return session.world.rank, session.world.size
    mine = next(part for part in layout.split("/") if str(session.world.rank) in part)
    return mine.index(str(session.world.rank)), len(mine)


def attempt(session: Session, function: Callable[..., Any], *args: Any) -> Any:
    """The result of ``function(session, *args)``, or its `Failure`."""
    try:
        return function(session, *args)
    except Exception as error:
        missing = error.missing if isinstance(error, CollectiveTimeout) else ()
        return Failure(type(error).__name__, missing, traceback.format_exc())


def tell(session: Session) -> None:
    """Say to the test that this rank has come to where the test begins."""
    session.control.enter(session.world.rank, 1, "start")


def await_all(control: ControlPage, size: int, deadline_s: float = 60.0) -> None:
    """Wait until all ranks have told."""
    await_step(control, range(size), 1, deadline_s)


def await_step(control: ControlPage, seats: Sequence[int], step: int, deadline_s: float = 60.0) -> None:
    """Wait until the ranks in these seats have come to `step`."""
    until = time.monotonic() + deadline_s
    while any(control.progress(seat)[0] < step for seat in seats):
        assert time.monotonic() < until, [control.progress(seat) for seat in seats]
        time.sleep(0.002)


class FatalStore(Store):
    """Its user sends itself a signal when it has said where it listens, and before it connects with anyone."""

    def __init__(self, store: Store, number: int) -> None:
        super().__init__()
        self._store, self._number = store, number

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        os.kill(os.getpid(), self._number)
        self._store.wait(keys)
