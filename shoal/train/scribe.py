"""Who tells the world: the first worker on the host of the run directory writes events and calls the callbacks.

When that worker is lost, the next one takes over: the terminal, the run directory and the callbacks, which read what
they need of the past from the run directory, as in a run that goes on after an interruption.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from shoal.core.cursor import Batches
from shoal.core.events import Evaluated, Event, MemberJoined, ViewChanged
from shoal.core.world import Member, View
from shoal.launch.rundir import RunDir
from shoal.launch.session import Session
from shoal.train.callbacks import RunInfo, Stop
from shoal.train.following import evaluated_elsewhere
from shoal.train.hearing import EVALUATOR, EventTail, evaluation_in
from shoal.train.opening import Opened, begin, hold
from shoal.train.place import Place
from shoal.train.spec import RunSpec
from shoal.train.starting import Standing, opening_events, run_info, run_started

_LISTEN_S = 0.1  # between two looks for the evaluator's results
_LOCK_S = 10.0  # for the first worker before, which was killed, to be gone


class Scribe:
    """Passes events on where this worker keeps the record, and remembers the first `Stop` that a callback asked for.
    What it holds is given back with `closing`."""

    def __init__(self, spec: RunSpec, session: Session, closing: contextlib.ExitStack) -> None:
        self._spec, self._session, self._closing = spec, session, closing
        self._info: RunInfo | None = None  # while this worker keeps the record
        self._run_dir: RunDir | None = None
        self._stop: Stop | None = None
        self._tail: EventTail | None = None  # where an evaluator enters what it has found
        self._listen_s = 0.0

    def __call__(self, event: Event) -> None:
        if self._run_dir is not None:
            if isinstance(event, Evaluated):
                self.listen(at_once=True)  # callbacks hear of evaluations in the order of their steps
            self._run_dir.append(event)
            self._tell(event)

    def listen(self, at_once: bool = False) -> None:
        """Tell the callbacks what the evaluator has entered in the run directory meanwhile."""
        now_s = time.monotonic()
        if self._tail is None or (now_s < self._listen_s and not at_once):
            return
        self._listen_s = now_s + _LISTEN_S
        for event in self._tail.new():
            evaluation = evaluation_in(event)
            if evaluation is not None and evaluation.by == EVALUATOR:
                self._tell(evaluation)

    @property
    def wish(self) -> str | None:
        """Why a callback wishes the run to stop, if one does."""
        return self._stop.reason if self._stop is not None else None

    def begin(
        self, opened: Opened, place: Place, batches: Batches, members: Sequence[Member], standing: Standing,
        notes: Sequence[Event],
    ) -> None:  # fmt: skip
        """The run begins, in its first view."""
        if not place.keeps_record:
            return
        begin(opened, self._session)
        self._session.take_terminal()
        info = self._keep(opened, place, batches)
        for event in opening_events(info, opened, members, batches, standing, notes):
            self(event)
        self(_view_event(place.view.number, members))

    def take_over(
        self, opened: Opened, place: Place, batches: Batches, before: View | None, standing: Standing
    ) -> None:
        """The run is in a new view, after `before`; None: this worker has just come. It may keep the record now."""
        if not place.keeps_record:
            self._info = self._run_dir = self._tail = None
            return
        if self._info is None:
            self._session.take_terminal()
            hold(opened, self._session, self._closing, _LOCK_S)
            begin(opened, self._session)
            info = self._keep(opened, place, batches, taken_over=True)
            self._tell(run_started(info, batches, standing))
        else:
            view = place.view
            self._info = replace(self._info, workers=view.size, hosts=view.hosts, backend=place.group.backend)
        known = {member.key for member in before.members} if before is not None else set()
        for member in place.view.members:
            if before is not None and member.key not in known:
                self(MemberJoined(member.role, member.rank, member.host, member.pid))
        self(_view_event(place.view.number, place.view.members))

    def _keep(self, opened: Opened, place: Place, batches: Batches, taken_over: bool = False) -> RunInfo:
        config = opened.config
        epochs = config.epochs if self._spec.growing is None else None  # each has a length of its own
        total = config.steps or (epochs * batches.per_epoch if epochs is not None else None)
        self._run_dir = opened.run_dir
        if evaluated_elsewhere(config, self._session):
            # callbacks read for themselves what is there, when they are told that the run begins
            self._tail = EventTail(opened.run_dir.events_file, from_end=True)
        self._info = run_info(self._spec, opened, self._session, place, batches, total, taken_over)
        return self._info

    def _tell(self, event: Event) -> None:
        assert self._info is not None
        for callback in self._spec.callbacks:
            wish = callback.on_event(event, self._info)
            if wish is not None and self._stop is None:
                self._stop = wish


def _view_event(number: int, members: Sequence[Member]) -> ViewChanged:
    return ViewChanged(number, tuple(map(str, members)), tuple(member.pid for member in members))
