"""An interrupted benchmark goes on where it was, and never mixes figures that cannot be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.journal import Journal
from benchmarks.report import Run

pytestmark = pytest.mark.unit
GOOD = Run("ddp", "mlp", 0, 0.5, 3.0, 100.0, checksum=1.0)
BAD = Run("shoal", "mlp", 0, 0.5, 3.0, error="exit status 1")


def test_finished_runs_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path, {"steps": 3})
    first.add(GOOD)
    first.add(BAD)
    second = Journal(path, {"steps": 3})
    assert second.runs == [GOOD, BAD]
    assert second.holds(["ddp"], "mlp", 0)
    assert not second.holds(["ddp"], "mlp", 1)
    assert not second.holds(["ddp"], "resnet20", 0)


def test_a_round_with_a_gap_is_run_as_a_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", {})
    journal.add(GOOD)
    assert not journal.holds(["ddp", "ray"], "mlp", 0)


def test_a_failed_run_is_tried_again_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, {})
    journal.add(BAD)
    assert not journal.holds(["shoal"], "mlp", 0)
    better = Run("shoal", "mlp", 0, 0.5, 3.0, 200.0, checksum=1.0)
    journal.add(better)
    assert journal.runs == Journal(path, {}).runs == [better]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, {"steps": 3}).add(GOOD)
    with pytest.raises(SystemExit, match="steps"):
        Journal(path, {"steps": 4})
