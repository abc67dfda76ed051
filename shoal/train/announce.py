"""Tells the world what happened: one line in the run directory, one call to each callback. First worker only."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.events import Event
from shoal.launch.rundir import RunDir
from shoal.train.callbacks import Callback, RunInfo, Stop


class Announcer:
    """Passes events on, and remembers the first `Stop` that a callback asked for."""

    def __init__(self, run_dir: RunDir, callbacks: Sequence[Callback], info: RunInfo) -> None:
        self._run_dir, self._callbacks, self._info = run_dir, tuple(callbacks), info
        self.stop: Stop | None = None

    def __call__(self, event: Event) -> None:
        self._run_dir.append(event)
        for callback in self._callbacks:
            wish = callback.on_event(event, self._info)
            if wish is not None and self.stop is None:
                self.stop = wish
