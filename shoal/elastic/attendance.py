"""A worker's part in the membership of a run: how it comes into a view, leaves it, and waits for the next."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.core.errors import PeerLost
from shoal.core.world import Member, View, World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from shoal.store.access import FleetAccess


class FitOver(Exception):  # noqa: N818 - control flow, as StopIteration is
    """The fit that this worker has come for is finished already: it passes over it."""


class RunOver(Exception):  # noqa: N818
    """The run has ended, or goes on without this worker: nothing is left to do for it."""

    def to_message(self) -> dict[str, str]:
        """What the launcher is told of it."""
        return {"type": "released"}


class PutOut(RunOver):
    """This worker was taken for lost, and its place is another's now. Says why."""

    def to_message(self) -> dict[str, str]:
        return {**super().to_message(), "put_out": str(self)}


class Attendance(ABC):
    """One a process, used from its main thread. Every wait has a deadline and raises an error that names for whom."""

    key: str  # of this process, as in `Member.key`
    on_broken: Callable[[], None] | None = (
        None  # called, in any thread, as soon as the current view is known to be broken
    )
    survives: bool  # whether a lost member leads to a next view, or to the end of the run

    @abstractmethod
    def enter(self, fit: int) -> View:
        """Come to the door of `fit` and wait for the first view that has this worker in it.

        Raises `FitOver` where the others have finished that fit, and `RunOver` where the run ends meanwhile."""

    @abstractmethod
    def next(self, view: View, broken: bool) -> View:
        """This worker has left `view`, at the end of a step, or because it is `broken`; wait for the next one.

        May be called again with the same view that was given before, if that broke in the making. Raises `RunOver`."""

    @abstractmethod
    def change_wanted(self, view: View) -> bool:
        """Whether `view` should be left at the end of this step: someone is at the door, or is to go. Does not wait."""

    @property
    @abstractmethod
    def going(self) -> bool:
        """Whether this worker was asked to leave the run at the end of a step."""

    @abstractmethod
    def depart(self, view: View) -> None:
        """Leave the run for good, in good order."""

    @abstractmethod
    def finish(self, fit: int) -> None:
        """This worker has finished `fit`, as a member of its last view."""

    @abstractmethod
    def store(self, view: View, timeout_s: float) -> Store:
        """The store in which the members of `view` find each other."""

    def fleet(self, fit: int) -> FleetAccess | None:
        """The way to the servers that the launcher starts for `fit`, which must have been asked of it; None where there
        is no launcher that could. Does not wait."""
        return None


class FixedAttendance(Attendance):
    """Members that never change: a process of its own, or ranks of a test. A lost one ends the run."""

    survives = False
    going = False

    def __init__(self, world: World, rendezvous: str | None) -> None:
        self._world, self._rendezvous = world, rendezvous
        self.key = str(world.rank)

    def enter(self, fit: int) -> View:
        host, mine = socket.gethostname(), self._world.rank
        members = [
            Member("worker", rank, host, os.getpid() if rank == mine else 0, str(rank), "fixed", rank)
            for rank in range(self._world.size)
        ]
        return View(fit + 1, tuple(members))

    def next(self, view: View, broken: bool) -> View:
        raise PeerLost("a worker of a run with fixed members is gone")

    def change_wanted(self, view: View) -> bool:
        return False

    def depart(self, view: View) -> None:
        pass

    def finish(self, fit: int) -> None:
        pass

    def store(self, view: View, timeout_s: float) -> Store:
        from shoal.comm.rendezvous import open_store
        from shoal.core.errors import ConfigError

        if self._rendezvous is None:
            raise ConfigError("comm.backend=gloo needs a rendezvous, which `shoal train` or fit(workers=N) gives")
        return open_store(self._rendezvous, f"group-{view.number}", view.size, timeout_s)
