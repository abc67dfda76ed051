"""The command line of the soak: cases one after the other until the time is up, or one that is named."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.testing.soak.case import Case, draw_case
from shoal.testing.soak.history import KINDS
from shoal.testing.soak.seats import Seats
from shoal.testing.soak.shrink import shrink
from shoal.testing.soak.trying import Tried, try_case

_SHOWN = 60  # lines of a violation


def main(words: Sequence[str]) -> int:
    """Run the command line: 0 if every case has kept the laws, 1 if one has not, 2 for a mistake in the line."""
    options = _options(words)
    try:
        cases = iter([Case.parse(options.case)]) if options.case else _drawn(options)
    except ConfigError as error:
        print(f"soak: error: {error}", file=sys.stderr)
        return 2
    return _Soak(options).run(cases)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shoal.testing.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--seed", type=int, default=1, help="from which cases are drawn (1)")
    parser.add_argument(
        "--from", dest="first", type=int, default=0, metavar="N", help="the first case of that seed (0)"
    )
    parser.add_argument("--cases", type=int, help="at most so many")
    parser.add_argument("--case", metavar="TEXT", help="this case, and no other")
    parser.add_argument("--failures", type=int, default=5, help="end after so many (5)")
    parser.add_argument(
        "--without", default="", metavar="KINDS", help=f"kinds of faults to leave out, of {', '.join(KINDS)}"
    )
    parser.add_argument("--shrink", type=float, default=180.0, metavar="SECONDS", help="for each failure (180); 0: not")
    parser.add_argument("--keep", action="store_true", help="leave the directories of cases that failed")
    return parser.parse_args(words)


def _drawn(options: argparse.Namespace) -> Iterator[Case]:
    leave_out = frozenset(options.without.split(",")) - {""}
    unknown = leave_out - set(KINDS)
    if unknown:
        raise ConfigError(f"--without {options.without}: {sorted(unknown)[0]!r} is none of {', '.join(KINDS)}")
    numbers = count(options.first)
    return (draw_case(options.seed, number, leave_out) for number in numbers)


class _Soak:
    """One run of the command. Whatever ends it, nothing is left but what was asked to be kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._counts: Counter[str] = Counter()
        self._lines: list[str] = []  # that repeat failures
        self._begun = time.monotonic()

    def run(self, cases: Iterator[Case]) -> int:
        place = Path(tempfile.mkdtemp(prefix="shoal-soak-"))
        try:
            with Seats(place / "temporary") as seats:
                self._all(cases, place, seats)
        except KeyboardInterrupt:
            print("\nsoak: interrupted")
        finally:
            if not (self._options.keep and self._lines):
                shutil.rmtree(place, ignore_errors=True)
            self._report(place)
        return 1 if self._lines else 0

    def _all(self, cases: Iterator[Case], place: Path, seats: Seats) -> None:
        until = self._begun + 60 * self._options.minutes
        for number, case in enumerate(cases):
            if time.monotonic() > until or number == self._options.cases or len(self._lines) >= self._options.failures:
                return
            tried = try_case(case, place / str(number), seats)
            self._counts[tried.outcome] += 1
            self._show(number, case, tried)
            if tried.outcome == "failed":
                self._failed(case, tried, place / f"shrinking-{number}", seats)
            if not (self._options.keep and tried.outcome == "failed"):
                shutil.rmtree(place / str(number), ignore_errors=True)

    def _failed(self, case: Case, tried: Tried, place: Path, seats: Seats) -> None:
        for violation in tried.violations:
            print(f"  {violation.law}: " + "\n    ".join(violation.words.splitlines()[:_SHOWN]))
        print(f"  repeat: {repeating(case)}", flush=True)
        if self._options.shrink:
            laws = {violation.law for violation in tried.violations}
            case = shrink(case, laws, place, seats, self._options.shrink)
            print(f"  shrunk: {repeating(case)}", flush=True)
        self._lines.append(f"{tried.violations[0].law}: {repeating(case)}")

    def _show(self, number: int, case: Case, tried: Tried) -> None:
        seconds = time.monotonic() - self._begun
        faults = " ".join(fault.text() for fault in case.history.faults) or "calm"
        way = case.way.strategy if case.way.strategy != "hybrid" else f"hybrid/{case.way.outer}"
        more = f": {tried.words.splitlines()[0][:100]}" if tried.words else ""
        print(
            f"{seconds:6.0f} s  case {self._options.first + number}: {tried.outcome} in {tried.seconds:.1f} s  "
            f"({way} x {case.way.workers}, {case.program.body}, {case.program.optimizer}, {faults}){more}",
            flush=True,
        )

    def _report(self, place: Path) -> None:
        total = sum(self._counts.values())
        parts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(self._counts.items()))
        print(f"soak: {total} cases in {time.monotonic() - self._begun:.0f} s: {parts or 'none'}")
        for line in self._lines:
            print(f"  {line}")
        if self._options.keep and self._lines:
            print(f"  kept: {place}")


def repeating(case: Case) -> str:
    """The line that repeats a case."""
    return f"python -m shoal.testing.soak --case {shlex.quote(case.text())}"
