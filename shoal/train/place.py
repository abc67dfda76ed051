"""A worker's place in one view of a run: its rank, its group, and what the members tell each other on meeting."""

from __future__ import annotations

import json

import torch

from shoal.comm.group import Group
from shoal.comm.select import forget_older, make_group
from shoal.core.config import Config
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.world import View, World
from shoal.launch.session import Session

NO_STATE = -1  # acts of a worker that has just come


class Place:
    """Made collectively by all members of `view`; raises `PeerLost` where the view breaks meanwhile."""

    def __init__(self, session: Session, view: View, config: Config) -> None:
        me = view.member(session.attendance.key)
        if me is None:
            raise ShoalError(f"view {view.number} does not have this worker in it")
        self.view, self.me = view, me
        device = _device(me.seat, config.device)
        self.world = World(me.rank, view.size, device, me.seat)
        self._session = session
        session.rank, session.size = me.rank, view.size
        session.control.enter(me.seat, session.control.progress(me.seat)[0], "meet")
        session.control.enter_view(me.seat, view.number)
        self.group: Group = make_group(
            view,
            me.key,
            session.control,
            config.comm.backend,
            lambda: session.attendance.store(view, config.comm.timeout_s),
            config.comm.timeout_s,
            device,
        )
        session.attendance.on_broken = self.group.interrupt
        session.report({"type": "view", "number": view.number, "rank": me.rank, "size": view.size})

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

    def shares(self, config: Config) -> tuple[float, ...]:
        """The weights by which a batch is divided: as stated, as long as there is one for each worker."""
        if config.weights is not None and len(config.weights) == self.view.size:
            return config.weights
        return (1.0,) * self.view.size

    def compare(self, acts: int) -> tuple[int | None, bool]:
        """Who is furthest, and whether others are behind. None: nobody has any state. Collective."""
        words = self.group.gather_bytes(json.dumps(acts).encode(), "comparing how far we are")
        forget_older(self.view, self.me, self._session.control)  # everybody is here, so nobody is there
        counts = [int(json.loads(word)) for word in words]
        best = max(counts)
        if best == NO_STATE:
            return None, False
        return counts.index(best), min(counts) < best

    def close(self) -> None:
        """Leave the group. Not collective; may be called twice."""
        self._session.attendance.on_broken = None
        self._session.control.enter_view(self.me.seat, 0)
        self.group.close()


def _device(seat: int, wanted: str) -> str:
    """Where this worker computes: a GPU of its own where there are any, unless the user says otherwise."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ConfigError("device=cuda, but PyTorch sees no GPU here: use --set device=cpu")
    if wanted == "cpu" or not available:
        return "cpu"
    return f"cuda:{seat % torch.cuda.device_count()}"
