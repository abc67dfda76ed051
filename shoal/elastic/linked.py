"""Taking part in the views that a coordinator forms."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.comm.control import ControlPage
from shoal.core.errors import PeerLost, ShoalError
from shoal.core.world import View
from shoal.elastic.attendance import Attendance, FitOver, PutOut, RunOver
from shoal.elastic.link import Link
from shoal.elastic.status import WorkerState, WorkerStatus, WorkerWord

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from shoal.store.access import FleetAccess

_LOOK_S = 0.1  # how often to look whether the run is over for all
_GOODBYE_S = 10.0  # how long to wait that the coordinator has heard what a worker says last


class MeetingTimeout(ShoalError):  # noqa: N818 - it names the event
    """The next view did not come about in time. Names those for whom it waits."""

    def __init__(self, elapsed_s: float, awaited: tuple[str, ...], heard: bool) -> None:
        self.elapsed_s, self.awaited = elapsed_s, awaited
        whom = ", ".join(awaited) or ("more workers" if heard else "the coordinator, which gives no answer")
        super().__init__(
            f"waited {elapsed_s:.0f} s for {whom}, to begin with the workers that are there. If a start may take that "
            "long, raise elastic.start_s; if fewer workers are enough, lower elastic.min_workers"
        )


@dataclass(frozen=True)
class Identity:
    """Who a worker is, as in `WorkerStatus`, for as long as it lives."""

    key: str
    agent: str
    host: str
    seat: int
    address: str = ""
    pid: int = 0  # 0: this process


class LinkedAttendance(Attendance):
    """The attendance of the worker `me`, over `link`, whose hooks it sets. Breaks views on `control` as soon as the
    coordinator says that they are broken, or that this worker is out, and then calls `on_broken`."""

    survives = True

    def __init__(self, link: Link, me: Identity, control: ControlPage, start_timeout_s: float) -> None:
        self.key = me.key
        self._link, self._control, self._start_timeout_s = link, control, start_timeout_s
        self._asked_to_go = False
        self._store: Store | None = None
        self._status = WorkerStatus(
            me.key, me.agent, me.host, me.pid or os.getpid(), me.seat, me.address, fit=0, view=0, state="door"
        )
        link.on_word, link.amend = self._hear, self._amend

    def enter(self, fit: int) -> View:
        self._say("door", fit=fit)

        def admitted(word: WorkerWord) -> View | None:
            if word.over > fit:
                raise FitOver
            if self.going:
                raise RunOver("it was asked to leave before it had begun")
            return self._newer(word)

        try:
            return self._wait_for(admitted)
        except RunOver:
            self._say("gone")
            self._link.flush(_GOODBYE_S)
            raise

    def next(self, view: View, broken: bool) -> View:
        self._say("broken" if broken else "left", view=view.number)
        return self._wait_for(self._newer)

    def change_wanted(self, view: View) -> bool:
        word = self._word()
        return self.going or (word is not None and word.change >= view.number)

    @property
    def going(self) -> bool:
        word = self._word()
        return self._asked_to_go or (word is not None and word.leave)

    @property
    def takes_part(self) -> bool:
        """Whether this worker has a part in the fit: it is in a view, or between two. Takes no lock."""
        return self._status.state in ("in", "left", "broken")

    def ask_to_go(self) -> None:
        """Leave the run at the end of a step. May be called by a signal handler: it takes no lock."""
        self._asked_to_go = True
        self._link.wake()

    def depart(self, view: View) -> None:
        self._say("gone", view=view.number)
        self._link.flush(_GOODBYE_S)

    def finish(self, fit: int) -> None:
        self._say("finished", fit=fit)
        self._link.flush(_GOODBYE_S)

    def store(self, view: View, timeout_s: float) -> Store:
        from shoal.elastic.store import CoordinatorStore

        prefix = f"view-{view.number}/"
        # kept, because torch holds only its own half of an object of ours: without this one, it cannot be called
        self._store = CoordinatorStore(self._link, prefix, timeout_s, lambda: self._control.broken(view.number))
        return self._store

    def fleet(self, fit: int) -> FleetAccess | None:
        from shoal.elastic.fleet import access_to

        return access_to(self._link, self._link.keys, fit, self._start_timeout_s)

    def close(self) -> None:
        """End the link."""
        self._link.close()

    def _word(self) -> WorkerWord | None:
        word = self._link.word
        return word if isinstance(word, WorkerWord) else None

    def _say(self, state: WorkerState, *, fit: int | None = None, view: int | None = None) -> None:
        status = self._status
        self._status = replace(
            status,
            state=state,
            fit=status.fit if fit is None else fit,
            view=status.view if view is None else view,
        )
        self._link.say(self._status)

    def _wait_for(self, condition: Callable[[WorkerWord], View | None]) -> View:
        """Wait for a view that is whole, and take part in it."""
        since = time.monotonic()
        until = since + self._start_timeout_s
        while True:

            def at_last(word: WorkerWord) -> View | None:
                if word.out:
                    raise PutOut(word.out)
                return condition(word)

            view = None
            while view is None and time.monotonic() < until:
                if self._control.aborted:
                    raise PeerLost("the run is over, because another worker has failed")
                view = self._link.wait_until(at_last, min(_LOOK_S, max(0.0, until - time.monotonic())))
            word = self._word()
            if view is None or word is None:
                heard = self._link.alive
                if word is not None and heard and word.running and self._status.state == "door":
                    until = time.monotonic() + self._start_timeout_s  # others train: there is no place, or not yet
                    continue
                raise MeetingTimeout(time.monotonic() - since, word.awaited if word and heard else (), heard)
            if word.broken < view.number:
                self._say("in", view=view.number)
                return view
            self._say("broken", view=view.number)  # before it came about: wait for the one after it

    def _newer(self, word: WorkerWord) -> View | None:
        """The view that the word gives this worker, if it is newer than all that it has left."""
        return word.view if word.view is not None and word.view.number > self._status.view else None

    # in the link's thread

    def _amend(self, status: WorkerStatus) -> WorkerStatus:
        """Who takes part and is to go says so."""
        return replace(status, state="going") if status.state == "in" and self.going else status

    def _hear(self, word: WorkerWord) -> None:
        before, mine = self._word() or WorkerWord(), self._status
        self._control.break_view(word.broken)
        put_out = bool(word.out) and not before.out and mine.state == "in"
        if put_out:
            self._control.break_view(mine.view)
        if put_out or (word.broken > before.broken and word.broken >= mine.view > 0):
            on_broken = self.on_broken  # looked at once: the main thread may take it away at any moment
            if on_broken is not None:
                on_broken()
