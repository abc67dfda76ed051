"""A drill on the terminal: how it goes on, and its report as tables."""

from __future__ import annotations

import time
from types import TracebackType

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.drill.inject import Hit
from shoal.drill.report import Report
from shoal.drill.rows import Row, fault_rows, run_rows
from shoal.drill.run import Progress

REFRESH_S = 0.1


class TerminalProgress(Progress):
    """A line on standard error that changes, where that is a terminal; and a line for each fault. Use with ``with``."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("")
        self._phase = ""
        self._shown = 0.0

    def __enter__(self) -> TerminalProgress:
        self._status.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._status.stop()

    def phase(self, words: str) -> None:
        self._phase = words
        self._status.update(f"{words} starts")
        if not self._console.is_terminal:
            self._console.print(f"drill: {words}")

    def at(self, step: int, total: int, workers: int) -> None:
        now = time.monotonic()
        if now - self._shown >= REFRESH_S and step:
            self._shown = now
            of = f" of {total}" if total else ""
            self._status.update(f"{self._phase}: step {step}{of}, {workers} workers")

    def hit(self, hit: Hit) -> None:
        self._console.print(
            Text.assemble(f"step {hit.at_step:>5}  ", (f"{hit.plan.kind:<12}", "bold red"), hit.member), soft_wrap=True
        )


def show(report: Report, console: Console | None = None) -> None:
    """Print the report: faults, both runs, laws, verdict."""
    console = console if console is not None else Console(highlight=False)
    console.print(_table(fault_rows(report), numbers=(2, 3, 4)))
    console.print(_table(run_rows(report)))
    laws = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for law in report.laws:
        mark = Text("held", style="green") if law.held else Text("BROKEN", style="bold red")
        laws.add_row(mark, Text(law.name), Text(law.measured), Text(f"({law.allowed})", style="dim"))
    console.print(laws)
    for note in report.notes:
        console.print(Text(note, style="dim"))
    if report.hurt_log:
        console.print(Text("The last words of the hurt run:", style="bold"))
        console.print(Text(report.hurt_log))
    style = "bold red" if report.broken else "bold yellow" if report.missed else "bold green"
    console.print(Text(f"\n{report.verdict()}", style=style))


def _table(rows: list[Row] | list[tuple[str, str, str]], numbers: tuple[int, ...] = ()) -> Table:
    head, *body = rows
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(head):
        table.add_column(name, justify="right" if at in numbers else "left")
    for row in body:
        table.add_row(*(Text(words) for words in row))
    return table
