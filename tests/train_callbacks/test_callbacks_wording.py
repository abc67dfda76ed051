"""Figures, and the commands that a run suggests."""

from __future__ import annotations

from pathlib import Path

import pytest
from callback_feed import Feed

from shoal.core.cursor import Cursor
from shoal.core.events import RunEnded
from shoal.train.callbacks import Callback, wording

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (4.24, "4.2 s"),
        (48.4, "48 s"),
        (59.7, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.96111, "0.9611"), (0.0, "0"), (1.2e-6, "1.200e-06"), (1e7, "1.000e+07")]
)
def test_figure(value: float, text: str) -> None:
    assert wording.figure(value) == text


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--workers", "4", "shoal train a.py --run-dir r --workers 4 -- --workers 9"),
        ("--run-dir", None, "shoal train a.py -w 2 -- --workers 9"),
        ("--dry-run", "", "shoal train a.py -w 2 --run-dir r --dry-run -- --workers 9"),
        ("--epochs", "8", "shoal train a.py -w 2 --run-dir r --epochs 8 -- --workers 9"),
    ],
)
def test_an_option_is_replaced_and_the_scripts_own_left_alone(option: str, value: str | None, expected: str) -> None:
    assert wording.with_option("shoal train a.py -w 2 --run-dir r -- --workers 9", option, value) == expected


def test_an_option_written_with_an_equals_sign_is_replaced_too() -> None:
    assert wording.with_option("shoal train a.py --workers=2", "--workers", "3") == "shoal train a.py --workers 3"


def test_more_workers_are_suggested_only_where_there_are_cores(tmp_path: Path) -> None:
    run = Feed(Callback(), tmp_path).run
    ended = RunEnded("completed", Cursor())
    assert dict(wording.next_steps(ended, run, cores=2)).keys() == {"train on", "see the plan"}
    more = dict(wording.next_steps(ended, run, cores=8))
    assert more["on more workers"] == "shoal train digits.py --workers 4"


def test_a_script_that_was_started_by_hand_is_told_of_the_command(tmp_path: Path) -> None:
    run = Feed(Callback(), tmp_path, resume_command="").run
    assert wording.next_steps(RunEnded("completed", Cursor()), run)[0][1].startswith("shoal train ")
