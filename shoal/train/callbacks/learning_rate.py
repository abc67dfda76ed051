"""The learning rates that were really taken."""

from __future__ import annotations

from shoal.core.events import RunStarted, StepCommitted
from shoal.train.callbacks.base import Callback, RunInfo


class LearningRateMonitor(Callback):
    """Keeps the learning rates in memory: `history` holds (step, one rate for each parameter group) in order.

    In a run directory they are in `history.csv` already; this is for plots and checks in the script itself.
    """

    def __init__(self) -> None:
        self.history: list[tuple[int, tuple[float, ...]]] = []

    def on_run_started(self, event: RunStarted, run: RunInfo) -> None:
        self.history = [entry for entry in self.history if entry[0] <= event.cursor.step]

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        self.history.append((event.cursor.step, event.learning_rates))
