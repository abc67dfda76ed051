"""One case from its beginning to its verdict."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shoal.testing.soak.calm import Calm
from shoal.testing.soak.case import Case
from shoal.testing.soak.conduct import conduct
from shoal.testing.soak.history import History
from shoal.testing.soak.judge import Verdict, Violation, grain, judge, needs_calm
from shoal.testing.soak.oracle import Unfit
from shoal.testing.soak.program import Program
from shoal.testing.soak.seats import Seats
from shoal.testing.soak.way import Way


@dataclass(frozen=True)
class Tried:
    """`unfit`: plain PyTorch cannot train the program either. `words` say why, where it was refused or unfit."""

    outcome: Literal["passed", "refused", "failed", "unfit"]
    violations: tuple[Violation, ...] = ()
    words: str = ""
    seconds: float = 0.0


_calm: dict[Program, Calm | None] = {}  # a program that comes again, as while a case is shrunk, is not run again


def _calm_run(program: Program, place: Path, seats: Seats) -> Calm | None:
    if program not in _calm:
        evidence = conduct(Case(program, Way("single", 1), History()), place, seats)
        _calm[program] = Calm.of(program, evidence)
    return _calm[program]


def try_case(case: Case, place: Path, seats: Seats) -> Tried:
    """Run `case` in the new directory `place` and judge it."""
    begun = time.monotonic()
    try:
        evidence = conduct(case, place, seats)
        # what is chosen for as many workers as were announced is given to the one
        program = replace(case.program, grain=case.program.grain or grain(case, evidence))
        calm = _calm_run(program, place / "calm", seats) if needs_calm(case, evidence) else None
        verdict = judge(case, evidence, calm)
    except Unfit as reason:
        return Tried("unfit", words=str(reason), seconds=time.monotonic() - begun)
    except Exception:  # what is left of a run may be such that it cannot even be read
        words = traceback.format_exc()
        verdict = Verdict("failed", (Violation("unreadable", words),))
    if verdict.outcome == "failed":
        seats.drop()  # what has failed may have left something behind that the next one would be blamed for
    return Tried(verdict.outcome, verdict.violations, verdict.words, time.monotonic() - begun)
