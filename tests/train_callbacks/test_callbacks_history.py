"""`history.csv`: complete, readable at any moment, and without duplicates after a resume."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from callback_feed import BATCHES, Feed

from shoal.core.cursor import Cursor
from shoal.core.errors import RunDirError
from shoal.core.events import StepCommitted
from shoal.train.callbacks import History

pytestmark = pytest.mark.unit


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def cursor_at(step: int) -> Cursor:
    cursor = Cursor()
    for _ in range(step):
        cursor = BATCHES.after(cursor)
    return cursor


def test_each_step_and_evaluation_is_a_row_as_it_happens(tmp_path: Path) -> None:
    feed = Feed(History(clock=lambda: 1700000000.25), tmp_path)
    feed.start()
    feed.step(2)
    assert [row["step"] for row in rows(tmp_path / "history.csv")] == ["1", "2"]
    feed.step(10)
    feed.evaluate(test_loss=0.25, test_accuracy=0.5)
    feed.step()
    table = rows(tmp_path / "history.csv")
    assert [row["kind"] for row in table] == ["step"] * 12 + ["eval", "step"]
    assert table[0] == {
        "kind": "step", "time": "1700000000.250", "epoch": "0", "step": "1", "samples": "128",
        "loss": "1.0", "lr": "0.1", "train_loss": "1.0", "test_loss": "", "test_accuracy": "",
    }  # fmt: skip
    assert table[12]["test_accuracy"] == "0.5"
    assert table[12]["loss"] == ""
    assert table[11]["samples"] == "1437"
    feed.end()


def test_values_survive_to_the_last_bit(tmp_path: Path) -> None:
    feed = Feed(History(), tmp_path)
    feed.start()
    feed.step(loss=1 / 3)
    assert float(rows(tmp_path / "history.csv")[0]["loss"]) == 1 / 3
    feed.end()


def test_several_parameter_groups_have_a_column_each(tmp_path: Path) -> None:
    feed = Feed(History(), tmp_path)
    feed.start()
    feed.send(StepCommitted(cursor_at(1), 1.0, 128, (0.1, 0.01), 0.1))
    feed.end()
    (row,) = rows(tmp_path / "history.csv")
    assert (row["lr"], row["lr.1"]) == ("0.1", "0.01")


def test_a_resumed_run_goes_on_without_duplicates(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for path in (whole, broken):
        feed = Feed(History(clock=lambda: 0.0), path)
        feed.start()
        for epoch in range(3):
            feed.step(12)
            feed.evaluate(test_loss=float(epoch))
        if path == whole:
            feed.step(6)
            feed.end()
        # the other is killed: no end, and its last row is cut off
    with (broken / "history.csv").open("a") as file:
        file.write("step,0.0,3,3")
    resumed = Feed(History(clock=lambda: 0.0), broken)
    resumed.start(cursor_at(20))
    kept = [int(row["step"]) for row in rows(broken / "history.csv")]
    assert kept == [*range(1, 13), 12, *range(13, 21)]
    resumed.step(4)
    resumed.evaluate(test_loss=1.0)
    resumed.step(12)
    resumed.evaluate(test_loss=2.0)
    resumed.step(6)
    resumed.end()
    assert (broken / "history.csv").read_text() == (whole / "history.csv").read_text()


def test_an_evaluation_that_is_repeated_at_the_cursor_is_one_row(tmp_path: Path) -> None:
    feed = Feed(History(), tmp_path)
    feed.start()
    feed.step(12)
    feed.evaluate(test_loss=0.5)
    again = Feed(History(), tmp_path)
    again.start(cursor_at(12))
    again.evaluate(test_loss=0.5)
    again.end()
    assert [row["kind"] for row in rows(tmp_path / "history.csv")].count("eval") == 1


def test_a_run_from_the_start_begins_the_file_anew(tmp_path: Path) -> None:
    for _ in range(2):
        feed = Feed(History(), tmp_path)
        feed.start()
        feed.step(3)
        feed.end()
    assert len(rows(tmp_path / "history.csv")) == 3


def test_a_path_of_ones_own(tmp_path: Path) -> None:
    feed = Feed(History(tmp_path / "deep" / "mine.csv"), tmp_path)
    feed.start()
    feed.step()
    feed.end()
    assert len(rows(tmp_path / "deep" / "mine.csv")) == 1


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    feed = Feed(History(tmp_path / "file" / "history.csv"), tmp_path)
    with pytest.raises(RunDirError, match=r"history\.csv"):
        feed.start()
