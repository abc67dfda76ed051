"""From a case that fails to the smallest that still fails: one simplification after the other, as long as it helps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from shoal.testing.soak.case import Case, sound_case
from shoal.testing.soak.history import History
from shoal.testing.soak.seats import Seats
from shoal.testing.soak.trying import try_case
from shoal.testing.soak.way import Way
from shoal.testing.soak.words import default_of


def shrink(case: Case, laws: set[str], place: Path, seats: Seats, seconds: float) -> Case:
    """The smallest case found in so many seconds that breaks one of `laws` as `case` does."""
    until = time.monotonic() + seconds
    number = 0
    shrunk = True
    while shrunk:
        shrunk = False
        for simpler in simpler_than(case):
            if time.monotonic() > until:
                return case
            number += 1
            tried = try_case(simpler, place / str(number), seats)
            shutil.rmtree(place / str(number), ignore_errors=True)
            if tried.outcome == "failed" and laws & {violation.law for violation in tried.violations}:
                case, shrunk = simpler, True
                break
    return case


def simpler_than(case: Case) -> Iterator[Case]:
    """Cases with one thing less, those first that take most away. Each makes sense, and none is `case` itself."""
    told = {case}
    for one in _candidates(case):
        candidate = sound_case(one)
        if candidate not in told:
            told.add(candidate)
            yield candidate


def _candidates(case: Case) -> Iterator[Case]:
    yield from (replace(case, history=history) for history in _shorter(case.history))
    for way in _fewer(case.way, ("strategy", "workers", "own_loop")):
        yield replace(case, way=way)
    for program in _fewer(case.program, ("seed", "samples", "batch", "epochs")):
        yield replace(case, program=program)
    for workers in range(1, case.way.workers):
        yield replace(case, way=replace(case.way, workers=workers))
    for epochs in range(1, case.program.epochs):
        yield replace(case, program=replace(case.program, epochs=epochs))
    for samples in (case.program.samples // 2, case.program.samples - 1):
        if samples >= 2:
            yield replace(case, program=replace(case.program, samples=samples))
    yield from (replace(case, history=history) for history in _plainer(case.history))


def _shorter(history: History) -> Iterator[History]:
    """With fewer faults, and by the same command."""
    yield History()
    for at in range(len(history.faults)):
        yield replace(history, faults=history.faults[:at] + history.faults[at + 1 :])
    if history.then is not None:
        yield replace(history, then=None)


def _plainer(history: History) -> Iterator[History]:
    """With as many faults, of which less is to be said."""
    if history.then is not None:
        for then in _fewer(history.then, ("strategy", "workers", "own_loop")):
            yield replace(history, then=then)
    for at, fault in enumerate(history.faults):
        for other in (replace(fault, moment="forward"), replace(fault, target=0)):
            yield replace(history, faults=(*history.faults[:at], other, *history.faults[at + 1 :]))


def _fewer(value: Any, kept: tuple[str, ...]) -> Iterator[Any]:
    """The value with all that is not `kept` as usual, then with one thing at a time as usual."""
    usual = {field.name: default_of(field) for field in fields(value) if field.name not in kept}
    yield replace(value, **usual)
    for name, plain in usual.items():
        if getattr(value, name) != plain:
            yield replace(value, **{name: plain})
    if isinstance(value, Way) and value.strategy == "hybrid":
        yield replace(value, strategy=value.outer)
