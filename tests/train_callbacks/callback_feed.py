"""A run as callbacks see it: events without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from shoal.core.config import Config
from shoal.core.cursor import Batches, Cursor
from shoal.core.events import Evaluated, Event, RunEnded, RunStarted, StepCommitted
from shoal.train.callbacks import Callback, RunInfo, Stop

BATCHES = Batches(samples=1437, global_batch=128, grain=16)


class Clock:
    """Time that passes only when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Feed:
    """Sends the events of a run of `epochs` epochs to one callback, `step_s` apart on `clock`."""

    def __init__(self, callback: Callback, run_dir: Path, epochs: int = 4, **changes: Any) -> None:
        self.callback = callback
        self.clock = Clock()
        self.step_s = 0.05
        self.train_loss: float | None = None  # of the epoch so far, where it is not that of the step
        config = Config(global_batch=BATCHES.global_batch, epochs=epochs, workers=2)
        self.run = RunInfo(
            config=config,
            run_dir=run_dir,
            strategy="allreduce",
            backend="shm",
            workers=2,
            total_steps=BATCHES.per_epoch * epochs,
            steps_per_epoch=BATCHES.per_epoch,
            module=nn.Linear(1, 1),
            resume_command=f"shoal train digits.py --workers 2 --run-dir {run_dir}",
            header=(("strategy", "allreduce"), ("workers", "2"), ("model", "9,610 parameters")),
        )
        self.run = replace(self.run, **changes)
        self.cursor = Cursor()

    def send(self, event: Event) -> Stop | None:
        return self.callback.on_event(event, self.run)

    def start(self, cursor: Cursor | None = None) -> None:
        self.cursor = cursor or Cursor()
        resumed = None if cursor is None else "checkpoints/last"
        self.send(
            RunStarted(
                "allreduce",
                "shm",
                2,
                self.cursor,
                self.run.total_steps,
                BATCHES.per_epoch,
                1437,
                resumed,
                self.train_loss,
            )
        )

    def step(self, times: int = 1, loss: float | None = None) -> None:
        for _ in range(times):
            after = BATCHES.after(self.cursor)
            self.clock.now += self.step_s
            taken = after.samples - self.cursor.samples
            value = loss or 1.0 / after.step
            self.send(StepCommitted(after, value, taken, (0.1,), self.step_s, train_loss=self.train_loss or value))
            self.cursor = after

    def evaluate(self, **values: float) -> Stop | None:
        return self.send(Evaluated(self.cursor, values or {"test_loss": 0.5, "test_accuracy": 0.9}, 0.1))

    def end(self, status: str = "completed", reason: str = "") -> None:
        summary: dict[str, Any] = {}
        if status in ("completed", "stopped"):
            final = {"train_loss": 0.4, "test_loss": 0.5, "test_accuracy": 0.9611}
            summary = {"final": final, "samples_per_s": 5120.4}
        self.send(RunEnded(status, self.cursor, reason, summary))
