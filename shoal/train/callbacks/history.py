"""The history of a run as a table."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from shoal.core.cursor import Cursor
from shoal.core.events import Evaluated, RunEnded, RunStarted, StepCommitted
from shoal.launch.rundir import disk_error, replace_file
from shoal.train.callbacks.base import Callback, RunInfo

COLUMNS = ("kind", "time", "epoch", "step", "samples", "loss", "lr")

Row = dict[str, str]


class History(Callback):
    """Writes a row for each step and each evaluation, as it happens: `history.csv` in the run directory.

    `kind` is ``step`` or ``eval``; `epoch`, `step` and `samples` count what is committed; `loss` is that of the step,
    `train_loss` that of the epoch so far. Each measured value has a column of its own, and so has each learning rate
    after the first (``lr.1``). A resumed run goes on in the same file: rows past its cursor are dropped first, so that
    no step stands twice.
    """

    def __init__(self, path: str | Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.path = None if path is None else Path(path)
        self._clock = clock
        self._columns: tuple[str, ...] = COLUMNS
        self._file: TextIO | None = None
        self._where = Path()
        self._last_evaluation = -1

    def on_run_started(self, event: RunStarted, run: RunInfo) -> None:
        self.close()
        self._where = self.path or run.run_dir / "history.csv"
        self._columns, rows = _read(self._where)
        rows = [row for row in rows if int(row["step"]) <= event.cursor.step] if event.cursor.step > 0 else []
        self._last_evaluation = max((int(row["step"]) for row in rows if row["kind"] == "eval"), default=-1)
        self._rewrite(rows)

    def on_step(self, event: StepCommitted, run: RunInfo) -> None:
        values = {"loss": event.loss}
        if event.train_loss is not None:
            values["train_loss"] = event.train_loss
        for group, rate in enumerate(event.learning_rates):
            values[f"lr.{group}" if group else "lr"] = rate
        self._append("step", event.cursor, values)

    def on_eval(self, event: Evaluated, run: RunInfo) -> None:
        # a run interrupted right after an evaluation may measure there again, to the same values
        if event.cursor.step > self._last_evaluation:
            self._last_evaluation = event.cursor.step
            self._append("eval", event.cursor, event.values)

    def on_run_ended(self, event: RunEnded, run: RunInfo) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, kind: str, cursor: Cursor, values: Mapping[str, float]) -> None:
        if self._file is None:
            return
        unknown = [name for name in values if name not in self._columns]
        if unknown:
            self._columns += tuple(unknown)
            self._rewrite(_read(self._where)[1])
        row = {
            "kind": kind,
            "time": f"{self._clock():.3f}",
            "epoch": str(cursor.epoch),
            "step": str(cursor.step),
            "samples": str(cursor.samples),
            **{name: repr(float(value)) for name, value in values.items()},
        }
        try:
            self._file.write(_line([row.get(name, "") for name in self._columns]))
            self._file.flush()
        except OSError as error:
            raise disk_error(self._where, error) from error

    def _rewrite(self, rows: list[Row]) -> None:
        """Begin the file anew with `rows`, under the columns known now, and leave it open for more."""
        self.close()
        lines = [
            _line(self._columns),
            *(_line([row.get(name, "") for name in self._columns]) for row in rows),
        ]
        try:
            self._where.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._where, "".join(lines))
            self._file = self._where.open("a")
        except OSError as error:
            raise disk_error(self._where, error) from error


def _line(cells: list[str] | tuple[str, ...]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _read(path: Path) -> tuple[tuple[str, ...], list[Row]]:
    """The columns and rows of an earlier part of the run; a last row that a crash cut off is left out."""
    if not path.exists():
        return COLUMNS, []
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    columns = tuple(lines[0]) if lines else ()
    if columns[: len(COLUMNS)] != COLUMNS:
        return COLUMNS, []
    rows = [dict(zip(columns, line, strict=True)) for line in lines[1:] if len(line) == len(columns)]
    return columns, [row for row in rows if row["step"].isdigit()]
