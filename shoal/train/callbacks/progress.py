"""How a run tells its user how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.core.events import (
    CheckpointSaved,
    Evaluated,
    Fault,
    FilesArrived,
    MemberJoined,
    MemberLost,
    Mirrored,
    RunEnded,
    RunStarted,
    StepCommitted,
    ViewChanged,
    Warned,
)
from shoal.train.callbacks import wording
from shoal.train.callbacks.base import Callback, RunInfo
from shoal.train.callbacks.pace import Pace

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.train.callbacks.display import Display, Snapshot

_REFRESH_S = 0.2  # a refresh costs half a millisecond, a step between two of them two microseconds
_LINE_EVERY_S = 10.0
_LINES_A_RUN = 10


class Progress(Callback):
    """Shows a run: a header, then how far it is, then what came out of it and what to try next.

    On a terminal a live line with loss, samples/s and time left; elsewhere a line for each epoch and each
    evaluation, and at least every tenth of the run or ten seconds. Nothing at all when the run's output is
    JSON. The loss is that of all samples of the epoch so far, whenever this process began. `console` and `clock`
    are for tests and for those who show a run elsewhere.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._console = console
        self._clock = clock
        self._display: Display | None = None
        self._live = False
        self._waiting: list[tuple[str, str]] = []  # what was noted before the run began

    def on_run_started(self, event: RunStarted, run: RunInfo) -> None:
        self.close()
        if run.json_output:
            return
        self._began = self._clock()
        self._cursor = event.cursor
        self._loss = event.train_loss
        self._pace = Pace(self._began, event.cursor.step, event.cursor.samples)
        self._evaluation: dict[str, float] = {}
        self._saved_step: int | None = event.cursor.step if event.resumed_from else None
        self._next_refresh = self._began
        self._next_line_s = self._began + _LINE_EVERY_S
        self._next_line_step = self._line_step(event.cursor.step, run)
        self._epoch_to_tell = False  # an epoch ended and no line has said so yet
        self._display = self._open()
        title = "training" if event.cursor.step == 0 else f"going on from step {event.cursor.step:,}"
        self._display.start(title, [] if run.taken_over else wording.header(run))
        for text, style in self._waiting:
            self._display.line(text, style)
        self._waiting = []
        if self._live:
            self._display.show(self._snapshot(run))

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        if self._display is None:
            return
        if self._epoch_to_tell:
            self._tell(run)
        cursor = self._cursor = event.cursor
        self._loss = event.train_loss
        self._epoch_to_tell = cursor.batch == 0 and not self._live
        now = self._clock()
        if now < self._next_refresh and cursor.step != run.total_steps:
            return
        self._next_refresh = now + _REFRESH_S
        self._pace.mark(now, cursor.step, cursor.samples)
        if self._live:
            self._display.show(self._snapshot(run))
        elif not self._epoch_to_tell and (now >= self._next_line_s or cursor.step >= self._next_line_step):
            self._tell(run)

    def on_eval(self, event: Evaluated, run: RunInfo) -> None:
        if self._display is None:
            return
        self._evaluation = dict(event.values)
        if event.cursor.step < self._cursor.step:  # an evaluator's, which comes later
            self._display.line(f"step {event.cursor.step:,}  {wording.values(event.values)}")
            return
        self._cursor = event.cursor
        at = self._snapshot(run)
        parts = [*at.place]
        if at.loss is not None:
            parts.append(f"loss {wording.figure(at.loss)}")
        parts.append(wording.values(event.values))
        self._display.line("  ".join(parts))
        self._told(run)

    def on_checkpoint(self, event: CheckpointSaved, run: RunInfo) -> None:
        self._saved_step = event.cursor.step

    def on_arrivals(self, event: FilesArrived, run: RunInfo) -> None:
        if not event.over:
            files = len(event.files)
            self._note(f"{files:,} new file{'s' if files > 1 else ''}, {event.samples:,} samples", "dim")

    def on_mirror(self, event: Mirrored, run: RunInfo) -> None:
        if event.status != "copied":
            self._note(*wording.mirror(event))

    def on_member_joined(self, event: MemberJoined, run: RunInfo) -> None:
        if self._display is not None:  # who is there when the run begins stands in the header
            who = f"{event.role} {event.rank} on {event.host}"
            self._display.line(f"{who} has joined: {wording.crew(run.workers, run.hosts)} now", "green")

    def on_view(self, event: ViewChanged, run: RunInfo) -> None:
        if self._live and self._display is not None:
            self._display.show(self._snapshot(run))

    def on_member_lost(self, event: MemberLost, run: RunInfo) -> None:
        self._note(f"{event.role} {event.rank} on {event.host} was lost: {event.cause}", "red")

    def on_fault(self, event: Fault, run: RunInfo) -> None:
        self._note(f"fault at step {event.at_step:,}: {event.member}: {event.cause}", "red")

    def on_warning(self, event: Warned, run: RunInfo) -> None:
        self._note(f"warning: {event.message}", "yellow")

    def on_run_ended(self, event: RunEnded, run: RunInfo) -> None:
        if self._display is None:
            return
        if self._epoch_to_tell:
            self._tell(run)
        display, elapsed_s = self._display, self._clock() - self._began
        self.close()
        display.block(*wording.result(event, run, elapsed_s, self._saved_step))
        if event.status in wording.FINISHED:
            display.block("try next", wording.next_steps(event, run))

    def close(self) -> None:
        """Give the terminal back, however the run ended. May be called twice."""
        if self._display is not None:
            self._display.stop()
            self._display = None

    def _open(self) -> Display:
        # rich is imported only where something is shown
        from rich.console import Console

        from shoal.train.callbacks.display import PlainDisplay, TerminalDisplay

        console = self._console or Console(highlight=False)
        self._live = console.is_terminal and not console.is_dumb_terminal
        return TerminalDisplay(console) if self._live else PlainDisplay(console.file)

    def _snapshot(self, run: RunInfo) -> Snapshot:
        from shoal.train.callbacks.display import Snapshot

        per_epoch = max(1, run.steps_per_epoch)
        of_unknown_length = self._cursor.epoch + (self._cursor.batch > 0)
        return Snapshot(
            step=self._cursor.step,
            total_steps=run.total_steps,
            epoch=max(1, -(-self._cursor.step // per_epoch) if run.steps_per_epoch else of_unknown_length),
            epochs=-(-run.total_steps // per_epoch),
            loss=self._loss,
            samples_per_s=self._pace.samples_per_s,
            seconds_left=self._pace.seconds_left(run.total_steps) if run.total_steps else None,
            evaluation=self._evaluation,
            workers=run.workers,
            hosts=run.hosts,
        )

    def _tell(self, run: RunInfo) -> None:
        """A plain line that says where the run is."""
        assert self._display is not None
        self._display.show(self._snapshot(run))
        self._told(run)

    def _told(self, run: RunInfo) -> None:
        self._epoch_to_tell = False
        self._next_line_s = self._clock() + _LINE_EVERY_S
        self._next_line_step = self._line_step(self._cursor.step, run)

    def _line_step(self, step: int, run: RunInfo) -> int:
        """The next step that a line should tell of: the next tenth of the run, where its length is known."""
        if not run.total_steps:
            return sys.maxsize
        tenth = max(1, run.total_steps // _LINES_A_RUN)
        return (step // tenth + 1) * tenth

    def _note(self, text: str, style: str) -> None:
        if self._display is None:
            self._waiting.append((text, style))
        else:
            self._display.line(text, style)
