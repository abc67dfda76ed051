"""A stretch of global batches is what walking from batch to batch gives, made only as it is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.cursor import Batches, Cursor
from shoal.train.stretch import Stretch

pytestmark = pytest.mark.unit


def _rate(cursor: Cursor) -> tuple[float, ...]:
    return (1.0 / (1 + cursor.step),)


@given(st.data())
def test_every_batch_is_that_of_the_walk(data: st.DataObject) -> None:
    batches = Batches(data.draw(st.integers(1, 300)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 50)))
    cursor = Cursor()
    for _ in range(data.draw(st.integers(0, 2 * batches.per_epoch))):
        cursor = batches.after(cursor)
    count = data.draw(st.integers(1, batches.per_epoch - cursor.batch))
    walk, at = [], cursor
    for _ in range(count):
        walk.append((batches.at(at), _rate(at)))
        at = batches.after(at)
    stretch = Stretch(batches, _rate, cursor, count)
    assert len(stretch) == count
    assert list(stretch) == walk
    assert (stretch[-1], stretch[1:]) == (walk[-1], tuple(walk[1:]))
    with pytest.raises(IndexError):
        stretch[count]


def test_what_is_not_asked_for_is_not_made() -> None:
    asked: list[Cursor] = []

    def rate(cursor: Cursor) -> tuple[float, ...]:
        asked.append(cursor)
        return (0.1,)

    stretch = Stretch(Batches(1_000_000, 10, 10), rate, Cursor(), 50_000)
    assert stretch[40_000][0].start == 400_000
    assert [cursor.step for cursor in asked] == [40_000]


def test_it_ends_with_its_epoch() -> None:
    with pytest.raises(AssertionError, match="not of one epoch"):
        Stretch(Batches(100, 10, 5), _rate, Cursor(batch=8, step=8, samples=80), 3)
