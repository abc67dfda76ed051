"""What a worker process knows of the run it belongs to. One a process, set before the user's script runs.

The script stays an ordinary program: it builds a Trainer and calls `fit()`, and `fit()` asks `current()` where it is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from shoal.comm.control import ControlPage
from shoal.core.world import World
from shoal.elastic.attendance import Attendance, FixedAttendance

if TYPE_CHECKING:
    from shoal.store.access import FleetAccess

Layer = tuple[str, Mapping[str, Any]]  # settings, and the words that name where they come from
Message = dict[str, Any]
WARNING = "warning"  # the type of a message: something went wrong on a worker and was mended, as its `message` says


class SessionEnd(BaseException):
    """Ends the user's script where it stands, with success: nothing is left to do in this process."""


@dataclass
class Session:
    """A process's part in a run. `report` sends a message to the launcher and may be called from any thread.

    `world` is the place it was given when it started; which rank it has in a view, the view says. `home`: the run
    directory is on this host. `take_terminal` makes the user's terminal this process's output, once it has become the
    first worker. `follows` are the run directories of the script's fit() calls so far, the last of which an evaluator
    follows; `run_over` waits so many seconds for the end of that run, and says whether it has come. `fleet` are servers
    that were started by whoever made this session; without, the launcher's are used.
    """

    world: World
    control: ControlPage
    layers: tuple[Layer, ...] = ()  # file, then flags: laid over what the script says
    mode: Literal["train", "dry-run"] = "train"
    script: str | None = None
    json_output: bool = False
    # an unauthenticated store port must not exist, so the launcher hands out a rendezvous for gloo (see comm)
    rendezvous: str | None = None
    report: Callable[[Message], None] = lambda message: None
    given_attendance: Attendance | None = None
    workers: int | None = None  # as the command states it, the same on every worker; None: what the script says
    home: bool = True
    role: Literal["worker", "evaluator"] = "worker"
    follows: tuple[str, ...] = ()
    run_over: Callable[[float], bool] = lambda wait_s: True
    take_terminal: Callable[[], None] = lambda: None
    fleet: FleetAccess | None = None
    rank: int = 0  # in the current view
    size: int = 1
    fits: int = 0  # fit() calls so far: a script may train several models
    open_runs: list[Any] = field(default_factory=list)  # that have begun and not ended: see `train.beside`
    run_dir: str | None = None  # of its first fit(), where the user's code states none of its own
    launched: bool = True  # False: this process was started by the user, not by a launcher
    endings: list[Callable[[], None]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def attendance(self) -> Attendance:
        """How this process takes part in views; where nothing else is given, its members never change."""
        return self.given_attendance or FixedAttendance(self.world, self.rendezvous)

    def at_end(self, finish: Callable[[], None]) -> None:
        """Have `finish` called when the script has come to its end without an error."""
        self.endings.append(finish)

    def end(self) -> None:
        """The script has come to its end."""
        while self.endings:
            self.endings.pop(0)()

    def next_fit(self) -> int:
        """Number the fit() calls of a script, from 0."""
        with self.lock:
            self.fits += 1
            return self.fits - 1


_current: Session | None = None


def current() -> Session:
    """This process's session; a process that the user started gets one of its own."""
    global _current  # noqa: PLW0603 - one session a process is the point
    if _current is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        _current = Session(World(), ControlPage(), script=script, launched=False)
    return _current


def install(session: Session) -> None:
    """Make `session` this process's. Called once, before the script runs."""
    global _current  # noqa: PLW0603
    _current = session
