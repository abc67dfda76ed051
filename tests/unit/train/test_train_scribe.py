"""Callbacks hear of evaluations in the order of their steps, whoever has made them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.core.cursor import Cursor
from shoal.core.events import Evaluated
from shoal.launch.rundir import RunDir
from shoal.train.callbacks import Callback, RunInfo
from shoal.train.hearing import EVALUATOR, EventTail
from shoal.train.scribe import Scribe

pytestmark = pytest.mark.unit


class Heard(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_eval(self, event: Evaluated, run: RunInfo) -> None:
        self.steps.append(event.cursor.step)


def at(step: int, by: str = "workers") -> Evaluated:
    return Evaluated(Cursor(batch=step, step=step, samples=step), {"test_loss": 1.0}, 0.1, by)


def test_what_the_evaluator_has_found_is_told_before_what_the_workers_find_later(tmp_path: Path) -> None:
    """The last evaluation of a quick run may be the workers': who takes only newer ones would miss the other."""
    heard, run_dir = Heard(), RunDir(tmp_path)
    scribe = Scribe(cast(Any, SimpleNamespace(callbacks=[heard])), cast(Any, None), contextlib.ExitStack())
    scribe._info, scribe._run_dir = cast(Any, object()), run_dir
    scribe._tail = EventTail(run_dir.events_file)
    scribe.listen()  # the next look is due in a moment
    run_dir.append(at(8, EVALUATOR))
    scribe(at(12))
    scribe.listen(at_once=True)
    assert heard.steps == [8, 12]
