"""How far `shoal prepare` is: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shoal.core.wrapping import for_stream
from shoal.data.preparing.progress import Progress

if TYPE_CHECKING:
    from rich.progress import TaskID

_LINE_EVERY_S = 10.0


class ShownProgress(Progress):
    """A progress that must be closed."""

    def close(self) -> None:
        """Take it off the screen. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def progress_for(quiet: bool) -> ShownProgress:
    """On standard error, so that standard output is the result."""
    if quiet:
        return ShownProgress()
    return _Bars() if sys.stderr.isatty() else _Lines()


class _Bars(ShownProgress):
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._shown = Progress(
            TextColumn("{task.description:>18}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TextColumn("{task.fields[rows]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._shown.start()
        self._bar: TaskID | None = None
        self._rows, self._new_rows, self._began = 0, 0, time.monotonic()

    def stage(self, name: str, tasks: int, nbytes: int) -> None:
        self._rows, self._new_rows, self._began = 0, 0, time.monotonic()
        self._bar = self._shown.add_task(name, total=nbytes, rows="")

    def advance(self, tasks: int, rows: int, nbytes: int, *, done_before: bool = False) -> None:
        assert self._bar is not None
        self._rows += rows
        self._new_rows += 0 if done_before else rows
        rate = self._new_rows / max(time.monotonic() - self._began, 1e-3)
        self._shown.update(self._bar, advance=nbytes, rows=f"{self._rows:,} rows, {rate:,.0f}/s" if self._rows else "")

    def say(self, words: str) -> None:
        self._shown.console.print(f"shoal: {words}", highlight=False, markup=False)

    def close(self) -> None:
        self._shown.stop()


class _Lines(ShownProgress):
    def __init__(self) -> None:
        self._stage, self._tasks, self._nbytes = "", 0, 0
        self._done: dict[str, Any] = {}
        self._began = self._said = time.monotonic()

    def stage(self, name: str, tasks: int, nbytes: int) -> None:
        self._stage, self._tasks, self._nbytes = name, tasks, nbytes
        self._done = {"tasks": 0, "rows": 0, "nbytes": 0, "new": 0, "new_rows": 0}
        self._began = self._said = time.monotonic()

    def advance(self, tasks: int, rows: int, nbytes: int, *, done_before: bool = False) -> None:
        done = self._done
        done["tasks"] += tasks
        done["rows"] += rows
        done["nbytes"] += nbytes
        done["new"] += 0 if done_before else nbytes
        done["new_rows"] += 0 if done_before else rows
        now = time.monotonic()
        if done["tasks"] == self._tasks or now - self._said >= _LINE_EVERY_S:
            self._said = now
            self.say(self._words(now - self._began))

    def _words(self, elapsed_s: float) -> str:
        from shoal.data.preparing.sizes import show_size

        done, elapsed_s = self._done, max(elapsed_s, 1e-3)
        rate = done["new"] / elapsed_s
        left = f", {(self._nbytes - done['nbytes']) / rate:.0f} s left" if rate and done["tasks"] < self._tasks else ""
        rows = f", {done['rows']:,} rows ({done['new_rows'] / elapsed_s:,.0f}/s)" if done["rows"] else ""
        return (
            f"{self._stage}: {done['tasks']} of {self._tasks} tasks, {show_size(done['nbytes'])} ({show_size(rate)}/s)"
            f"{rows}{left}"
        )

    def say(self, words: str) -> None:
        print(for_stream(f"shoal: {words}", sys.stderr), file=sys.stderr, flush=True)
