"""Ending a run when it no longer gets better."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from shoal.core.errors import ConfigError, nearest
from shoal.core.events import Evaluated, RunStarted
from shoal.train.callbacks.base import Callback, RunInfo, Stop


class EarlyStopping(Callback):
    """Stops the run after `patience` evaluations in a row without a gain of more than `min_delta`.

    A resumed run counts on where it was: what was measured up to its cursor is read from the run's events.
    """

    def __init__(
        self,
        monitor: str = "test_loss",
        patience: int = 3,
        min_delta: float = 0.0,
        mode: Literal["min", "max"] = "min",
    ) -> None:
        if patience < 1:
            raise ConfigError(f"EarlyStopping(patience={patience}): must be 1 or more evaluations")
        if not min_delta >= 0:
            raise ConfigError(f"EarlyStopping(min_delta={min_delta}): must be 0 or more")
        if mode not in ("min", "max"):
            raise ConfigError(f"EarlyStopping(mode={mode!r}): must be 'min' or 'max'")
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, min_delta, mode
        self._begin()

    def _begin(self) -> None:
        self.best: float | None = None
        self.best_step = 0
        self.without_gain = 0  # evaluations since the best one
        self._judged_step = -1

    def on_run_started(self, event: RunStarted, run: RunInfo) -> None:
        self._begin()
        if event.cursor.step > 0:
            before = _measured(run.run_dir / "events.jsonl", self.monitor, event.cursor.step)
            for step, value in before.items():
                self._judge(step, value)

    def on_eval(self, event: Evaluated, run: RunInfo) -> Stop | None:
        value = event.values.get(self.monitor)
        if value is None:
            raise ConfigError(
                f"EarlyStopping(monitor={self.monitor!r}): no such value is measured: "
                f"{nearest(self.monitor, event.values)}"
            )
        self._judge(event.cursor.step, value)
        if self.without_gain < self.patience:
            return None
        best = "never a number" if self.best is None else f"best {self.best:.6g} at step {self.best_step}"
        return Stop(f"{self.monitor} did not improve in {self.without_gain} evaluations ({best})")

    def _judge(self, step: int, value: float) -> None:
        if step <= self._judged_step:  # a resumed run may measure again where it was interrupted
            return
        self._judged_step = step
        if self._improves(value):
            self.best, self.best_step, self.without_gain = value, step, 0
        else:
            self.without_gain += 1

    def _improves(self, value: float) -> bool:
        if math.isnan(value) or self.best is None:
            return not math.isnan(value)
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta


def _measured(events_file: Path, monitor: str, up_to_step: int) -> dict[int, float]:
    """What was measured at each step up to `up_to_step`, in order. A step measured twice counts once."""
    values: dict[int, float] = {}
    for event in _evaluations(events_file):
        step, value = event["cursor"]["step"], event["values"].get(monitor)
        if step <= up_to_step and value is not None:
            values[step] = float(value)
    return dict(sorted(values.items()))


def _evaluations(events_file: Path) -> Iterator[Mapping[str, Any]]:
    if not events_file.exists():
        return
    with events_file.open() as lines:
        for line in lines:
            if '"eval"' not in line:
                continue
            try:
                event = json.loads(line)
            except ValueError:  # cut off by a crash: what it would have said was not committed
                continue
            if event.get("kind") == "eval":
                yield event
