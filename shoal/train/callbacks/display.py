"""Where progress is shown: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoal.core.wrapping import wrap
from shoal.train.callbacks import wording


@dataclass(frozen=True)
class Snapshot:
    """Where the run is, as far as a display shows it. A total of 0 is a length that is open."""

    step: int
    total_steps: int
    epoch: int
    epochs: int
    loss: float | None = None
    samples_per_s: float | None = None
    seconds_left: float | None = None
    evaluation: Mapping[str, float] = field(default_factory=dict)
    workers: int = 1  # now
    hosts: int = 1

    @property
    def place(self) -> tuple[str, str]:
        """The epoch and the step, in words."""
        return (
            f"epoch {wording.of(self.epoch, self.epochs)}",
            f"step {wording.of(self.step, self.total_steps)}",
        )


class Display(ABC):
    """Shows one run. `show` is called a few times a second at most, the rest when something happens."""

    @abstractmethod
    def block(self, title: str, rows: wording.Rows) -> None:
        """Several facts, for good."""

    @abstractmethod
    def line(self, text: str, style: str = "") -> None:
        """One fact, for good."""

    @abstractmethod
    def start(self, title: str, rows: wording.Rows) -> None:
        """The run begins."""

    @abstractmethod
    def show(self, snapshot: Snapshot) -> None:
        """The run is here now."""

    @abstractmethod
    def stop(self) -> None:
        """Give the terminal back. May be called twice."""


class PlainDisplay(Display):
    """Lines of text, for logs: nothing is drawn over."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream
        self._lost = False

    def start(self, title: str, rows: wording.Rows) -> None:
        self.line(": ".join(part for part in (title, ", ".join(f"{name} {value}" for name, value in rows)) if part))

    def block(self, title: str, rows: wording.Rows) -> None:
        width = max((len(name) for name, _ in rows), default=0)
        self.line("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)]))

    def line(self, text: str, style: str = "") -> None:
        if self._lost:
            return
        try:
            print(text, file=self._stream or sys.stdout, flush=True)
        except BrokenPipeError:  # whoever read along has gone (`| head`); the run goes on without
            self._lost = True

    def show(self, snapshot: Snapshot) -> None:
        parts = [*snapshot.place]
        if snapshot.loss is not None:
            parts.append(f"loss {wording.figure(snapshot.loss)}")
        if snapshot.samples_per_s is not None:
            parts.append(wording.rate(snapshot.samples_per_s))
        if snapshot.seconds_left:
            parts.append(f"{wording.duration(snapshot.seconds_left)} left")
        parts.append(wording.crew(snapshot.workers, snapshot.hosts))
        self.line("  ".join(parts))

    def stop(self) -> None:
        pass  # nothing was taken


class TerminalDisplay(Display):
    """A line that is drawn over, with everything that stays above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def start(self, title: str, rows: wording.Rows) -> None:
        self.block(title, rows)
        self._console.line()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        # a process that is killed cannot bring the cursor back, so it is not taken away
        self._console.show_cursor(True)

    def block(self, title: str, rows: wording.Rows) -> None:
        width = max((len(name) for name, _ in rows), default=0)
        self._console.line()
        self.line(title, "bold")
        for name, value in rows:
            shown = value if isinstance(value, wording.Command) else self._wrap(value, width + 4)
            self._print(Text.assemble("  ", (f"{name:<{width}}", "dim"), "  ", shown))

    def line(self, text: str, style: str = "") -> None:
        self._print(Text(self._wrap(text), style=style))

    def _wrap(self, text: str, column: int = 0) -> str:
        """`text` that begins in `column`, broken between words; what is broken off begins there, too."""
        return wrap(text, self._console.width - column).replace("\n", "\n" + " " * column)

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        if self._live is not None:
            ascii_only = self._console.options.ascii_only
            self._live.update(bar_line(snapshot, self._console.width - 1, ascii_only), refresh=True)

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):  # the terminal itself is gone
                live.stop()


def bar_line(snapshot: Snapshot, width: int, ascii_only: bool = False) -> Text:
    """The live line: epoch, bar, steps, loss, workers, speed, time left, last evaluation, as far as there is room."""
    head = f"{snapshot.place[0]} "
    facts = [f" {wording.of(snapshot.step, snapshot.total_steps)}"]
    if snapshot.loss is not None:
        facts.append(f"  loss {wording.figure(snapshot.loss)}")
    # on one host, hosts go without saying, and lines are short
    crew = wording.crew(snapshot.workers, snapshot.hosts)
    facts.append(f"  {crew if snapshot.hosts > 1 else crew.partition(' on ')[0]}")
    if snapshot.samples_per_s is not None:
        facts.append(f"  {wording.rate(snapshot.samples_per_s)}")
    if snapshot.seconds_left is not None:
        facts.append(f"  {wording.duration(snapshot.seconds_left)} left")
    if snapshot.evaluation:
        name = wording.by_interest(snapshot.evaluation)[0]
        facts.append(f"  {name} {wording.figure(snapshot.evaluation[name])}")
    longest_bar, shortest_bar = (40, 10) if snapshot.total_steps else (0, 0)
    while len(facts) > 1 and len(head) + shortest_bar + sum(map(len, facts)) > width:
        facts.pop()
    room = width - len(head) - sum(map(len, facts))
    cells = max(0, min(longest_bar, room))
    full = cells * min(snapshot.step, snapshot.total_steps) // max(1, snapshot.total_steps)
    done, left = ("#", "-") if ascii_only else ("━", "━")
    return Text.assemble(
        (head, "bold"), (done * full, "cyan"), (left * (cells - full), "bright_black"), "".join(facts),
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip
