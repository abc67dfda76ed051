"""Curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.errors import UserError
from shoal.core.events import Evaluated, RunEnded, RunStarted, StepCommitted
from shoal.train.callbacks.base import Callback, RunInfo

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoard(Callback):
    """Writes losses, learning rates, samples/s and evaluations into ``tensorboard/`` of the run directory.

    What lies past the cursor of a resumed run is hidden by TensorBoard, so that no step shows twice.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._writer: SummaryWriter | None = None

    def on_run_started(self, event: RunStarted, run: RunInfo) -> None:
        self.close()
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise UserError(
                f"tensorboard=True needs a package that is not installed ({error}): "
                "pip install 'shoal[tensorboard]', or leave the setting out"
            ) from error
        step = event.cursor.step
        self._writer = SummaryWriter(
            str(self.path or run.run_dir / "tensorboard"), purge_step=step + 1 if step > 0 else None
        )

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        if self._writer is not None:
            step = event.cursor.step
            self._writer.add_scalar("train/loss", event.loss, step)
            if event.train_loss is not None:
                self._writer.add_scalar("train/epoch_loss", event.train_loss, step)
            if event.step_s > 0:
                self._writer.add_scalar("train/samples_per_s", event.samples / event.step_s, step)
            for group, rate in enumerate(event.learning_rates):
                self._writer.add_scalar(f"learning_rate/group_{group}", rate, step)

    def on_eval(self, event: Evaluated, run: RunInfo) -> None:
        if self._writer is not None:
            for name, value in event.values.items():
                self._writer.add_scalar(f"eval/{name}", value, event.cursor.step)
            self._writer.flush()

    def on_run_ended(self, event: RunEnded, run: RunInfo) -> None:
        self.close()

    def close(self) -> None:
        """Write out what is left and end the writer's thread. May be called twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
