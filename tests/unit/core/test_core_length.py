"""Lengths of training: how they are written, what they mean, when a multiple of them is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.cursor import Batches, Cursor
from shoal.core.length import Length

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("50 steps", 50, "steps"), ("1 epoch", 1, "epochs"), (" 0.5epochs ", 0.5, "epochs"), ("1 sample", 1, "samples")],
)
def test_it_is_written_as_text(text: str, amount: float, unit: str) -> None:
    assert Length.parse(text) == Length(amount, unit)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("50", "not a length"),
        ("50 minutes", "not a length"),
        ("-1 steps", "not a length"),
        ("0 epochs", "more than zero"),
        ("1.5 steps", "whole number of steps"),
        (7, "not a length"),
    ],
)
def test_what_it_cannot_be_is_refused(text: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Length.parse(text)


@given(st.integers(1, 10**6), st.sampled_from(["steps", "samples", "epochs"]))
def test_it_reads_what_it_writes(amount: int, unit: str) -> None:
    assert Length.parse(str(Length(amount, unit))) == Length(amount, unit)


def test_in_steps() -> None:
    assert Length(2, "epochs").in_steps(15, 100) == 30
    assert Length(1000, "samples").in_steps(15, 100) == 10
    assert Length(1, "samples").in_steps(15, 100) == 1
    assert Length(7, "steps").in_steps(15, 100) == 7


@given(st.integers(1, 500), st.integers(1, 60), st.sampled_from(["steps", "samples", "epochs"]), st.integers(1, 200))
def test_it_is_due_once_for_each_multiple(samples: int, global_batch: int, unit: str, amount: int) -> None:
    """However batches fall, between the start and any cursor it was due as often as whole lengths have passed, or
    once for several that one batch passed together."""
    batches = Batches(samples, global_batch, 1)
    length = Length(amount, unit)
    cursor, times, whole = Cursor(), 0, []
    for _ in range(3 * batches.per_epoch):
        after = batches.after(cursor)
        done = {"steps": after.step, "samples": after.samples, "epochs": after.epoch}[unit]
        times += length.due(cursor, after, batches.per_epoch)
        whole.append(done // amount)
        cursor = after
    assert times == len(set(whole) - {0})


def test_half_an_epoch_is_due_twice_an_epoch() -> None:
    batches, cursor, due = Batches(1000, 100, 1), Cursor(), []
    for _ in range(20):
        after = batches.after(cursor)
        if Length(0.5, "epochs").due(cursor, after, batches.per_epoch):
            due.append(after.step)
        cursor = after
    assert due == [5, 10, 15, 20]
