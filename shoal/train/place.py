"""A worker's place in one view of a run: its rank, its group, and what the members tell each other on meeting."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

import torch

from shoal.comm.group import Group
from shoal.comm.select import forget_older, make_group, refuse_unencrypted
from shoal.core.config import Config
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.teams import Part
from shoal.core.world import View, World
from shoal.launch.session import Session

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Found = TypeVar("Found")

_HEAR_S = 5.0  # the longest that the others do not hear from one who looks for something
NO_STATE = -1  # acts of a worker that has just come


class Place:
    """Made collectively by all members of `view`; raises `PeerLost` where the view breaks meanwhile, and `ConfigError`
    where its members cannot be connected as the user wants it."""

    def __init__(self, session: Session, view: View, config: Config) -> None:
        me = view.member(session.attendance.key)
        if me is None:
            raise ShoalError(f"view {view.number} does not have this worker in it")
        # a run that listens for other hosts is refused before they come: later it would end in the middle
        refuse_unencrypted(config.comm.encrypt, any(member.address for member in view.members))
        self.view, self.me = view, me
        device = _device(me.seat, config.device)
        self.world = World(me.rank, view.size, device, me.seat)
        self._session = session
        session.rank, session.size = me.rank, view.size
        session.control.enter(me.seat, session.control.progress(me.seat)[0], "meet")
        session.control.enter_view(me.seat, view.number)
        self._config, self._groups = config.comm, list[Group]()
        session.attendance.on_broken = self._interrupt
        self.group = self._make_group(None)
        session.report({"type": "view", "number": view.number, "rank": me.rank, "size": view.size})

    def _make_group(self, part: Part | None) -> Group:
        settings, me = self._config, self.me
        group = make_group(
            self.view, me.key, self._session.control, settings.backend, self._open_store, settings.timeout_s,
            self.world.device, part,
        )  # fmt: skip
        self._groups.append(group)
        if self._session.control.broken(self.view.number):  # before anyone could be told of this group
            group.interrupt()
        return group

    def subgroup(self, part: Part) -> Group:
        """A group of some members of the view, of which this is one. Collective among them; closed with the place."""
        return self._make_group(part)

    @property
    def store(self) -> Callable[[], Store] | None:
        """Opens a store that all members of the view share. None where there is nobody to share it with."""
        return self._open_store if self.view.size > 1 else None

    def _open_store(self) -> Store:
        return self._session.attendance.store(self.view, self._config.timeout_s)

    def _interrupt(self) -> None:
        for group in list(self._groups):
            group.interrupt()

    @property
    def is_first(self) -> bool:
        return self.world.is_first

    @property
    def keeps_record(self) -> bool:
        """Whether this worker writes to the run directory: the first one, if that is on its host."""
        return self.world.is_first and self._session.home

    @property
    def first_key(self) -> str:
        return self.view.members[0].key

    def compare(self, acts: int) -> tuple[int | None, bool]:
        """Who is furthest, and whether others are behind. None: nobody has any state. Collective."""
        words = self.group.gather_bytes(json.dumps(acts).encode(), "comparing how far we are")
        forget_older(self.view, self.me, self._session.control)  # everybody is here, so nobody is there
        counts = [int(json.loads(word)) for word in words]
        best = max(counts)
        if best == NO_STATE:
            return None, False
        return counts.index(best), min(counts) < best

    def wait_for_first(self, find: Callable[[], Found | None], what: str) -> tuple[bool, Found | None]:
        """Let the first worker `find` something, however long that takes; returns whether it has, and what, on that
        worker. Collective: the others hear from it all the while, so that none takes it for lost."""
        with ThreadPoolExecutor(1, "shoal-finding") as threads:
            finding = threads.submit(find) if self.is_first else None
            while True:
                word = b"wait"
                if finding is not None and not wait([finding], _HEAR_S).not_done:
                    word = b"" if finding.result() is None else b"found"
                self._session.control.tick(self.me.seat)
                said = self.group.gather_bytes(word, what)[0]
                if said != b"wait":
                    return bool(said), finding.result() if finding is not None else None

    def close(self) -> None:
        """Leave the group. Not collective; may be called twice."""
        self._session.attendance.on_broken = None
        self._session.control.enter_view(self.me.seat, 0)
        for group in self._groups:
            group.close()


def _device(seat: int, wanted: str) -> str:
    """Where this worker computes: a GPU of its own where there are any, unless the user says otherwise."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ConfigError("device=cuda, but PyTorch sees no GPU here: use --set device=cpu")
    if wanted == "cpu" or not available:
        return "cpu"
    return f"cuda:{seat % torch.cuda.device_count()}"
