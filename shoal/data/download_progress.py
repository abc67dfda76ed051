"""How far a download is, for whoever sits at a terminal; one line for a log."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import Any


class Progress:
    """Used in a ``with`` block. `total` is None where the server does not say it."""

    def __init__(self, name: str, have: int, total: int | None) -> None:
        self._name, self._have, self._total = name, have, total
        self._stack = contextlib.ExitStack()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
            from rich.progress import Progress as Bar

            columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
            bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._bar = self._stack.enter_context(bar)
            self._task = bar.add_task(f"downloading {self._name}", total=self._total, completed=self._have)
        else:
            size = f" ({self._total / 1e6:,.1f} MB)" if self._total else ""
            print(f"downloading {self._name}{size}", file=sys.stderr, flush=True)
        return self

    def advance(self, nbytes: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, nbytes)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
