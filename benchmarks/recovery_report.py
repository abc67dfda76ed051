"""Figures of recoveries, and the table made of them. What did not come about is said in words, never as a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.faults import Outcome
from benchmarks.report import Figures


@dataclass(frozen=True)
class Measured:
    """What one subject did in all runs of one scenario. `error` says why there is less than was asked for."""

    subject: str
    scenario: str  # kill, join or freeze
    outcomes: tuple[Outcome, ...] = ()
    usual_steps_s: tuple[float, ...] = ()  # the median time between two steps, of each run
    error: str | None = None
    runs: tuple[Mapping[str, Any], ...] = field(default=())  # what each run says of itself

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.subject,
            self.scenario,
            self.outcomes + other.outcomes,
            self.usual_steps_s + other.usual_steps_s,
            self.error or other.error,
            self.runs + other.runs,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Reading = Callable[[Outcome], float | None]


@dataclass(frozen=True)
class Row:
    """One line of the table: what is read off each outcome of a scenario."""

    title: str
    scenario: str
    reading: Reading
    unit: str = "s"


ROWS = (
    Row("SIGKILL of 1 of 3 workers: longest pause between two steps", "kill", lambda one: one.pause_s),
    Row("… steps that were lost and done again", "kill", lambda one: one.steps_done_again, ""),
    Row("… until all 3 make steps again", "kill", lambda one: one.full_strength_s),
    Row("… the replacement: from its start to its first step", "kill", lambda one: one.newcomer_s),
    Row("A worker joins 2 others, 42 MB of parameters: longest pause", "join", lambda one: one.pause_s),
    Row("… by how much that is longer than a usual step", "join", lambda one: one.delay_s),
    Row("SIGSTOP of 1 of 3 workers: until it is noticed", "freeze", lambda one: one.detected_s),
    Row("… longest pause between two steps", "freeze", lambda one: one.pause_s),
)


def cell(row: Row, measured: Measured | None) -> str:
    """What the table says of one subject: the median with its quartiles, or why there is none."""
    if measured is None:
        return "not run"
    outcomes = [one for one in measured.outcomes if one.kind == row.scenario]
    if not outcomes:
        return f"failed: {measured.error}" if measured.error else "not run"
    found = [value for one in outcomes if (value := row.reading(one)) is not None]
    missing = len(outcomes) - len(found)
    watched = f"not within {max(one.watched_s for one in outcomes):.0f} s"
    figures = Figures.of(found)
    if figures is None:
        return watched if row.reading in _CERTAIN else "does not say"
    text = spread(figures, row.unit)
    return f"{text}; {missing} more {watched}" if missing else text


def spread(figures: Figures, unit: str = "s") -> str:
    """``0.05 s (0.04 to 0.07; 20)``: the median, the quartiles and how many there were."""
    digits = 0 if not unit else 3 if figures.median < 1 else 2
    median, lower, upper = (
        f"{value:.{digits}f}" for value in (figures.median, figures.lower_quartile, figures.upper_quartile)
    )
    return f"{median}{' ' + unit if unit else ''} ({lower} to {upper}; {figures.count})"


def table(measured: Sequence[Measured], titles: Mapping[str, str], skipped: Mapping[str, str]) -> str:
    """Markdown: a line for each row that anybody was measured in, a column for each of `titles`."""
    by = {(one.subject, one.scenario): one for one in measured}
    scenarios = {one.scenario for one in measured}
    lines = [
        "| median (quartiles; how many) | " + " | ".join(titles.values()) + " |",
        "|---|" + "---:|" * len(titles),
    ]
    for row in ROWS:
        if row.scenario not in scenarios:
            continue
        cells = [
            f"skipped: {skipped[name]}" if name in skipped else cell(row, by.get((name, row.scenario)))
            for name in titles
        ]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figures(measured: Iterable[Measured]) -> dict[str, Any]:
    """The figures behind the table, as JSON: subject, then row."""
    result: dict[str, Any] = {}
    for one in measured:
        for row in ROWS:
            if row.scenario == one.scenario:
                found = Figures.of(value for each in one.outcomes if (value := row.reading(each)) is not None)
                result.setdefault(one.subject, {})[f"{row.scenario}: {row.title}"] = asdict(found) if found else None
    return result


def membership_share(spans: Mapping[str, float], total_s: float) -> float | None:
    """The share of a run's time that went into membership; None where the run has no such spans."""
    found = [seconds for name, seconds in spans.items() if name.startswith("membership")]
    return sum(found) / total_s if found else None


# what is looked at from outside: where it is missing, it did not happen
_CERTAIN = {row.reading for row in ROWS} - {row.reading for row in ROWS if "noticed" in row.title}
