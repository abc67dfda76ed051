"""Where a run can be, and where it cannot."""

from __future__ import annotations

import pytest

from shoal.core.cursor import Batches, Cursor

pytestmark = pytest.mark.unit
BATCHES = Batches(samples=237, global_batch=20, grain=5)


def test_a_run_is_nowhere_but_where_its_steps_lead() -> None:
    cursor = Cursor()
    for _ in range(40):
        assert BATCHES.problem(cursor) == ""
        assert Cursor.from_json(cursor.to_json()) == cursor
        cursor = BATCHES.after(cursor)


@pytest.mark.parametrize(
    ("cursor", "said"),
    [
        (Cursor(0, 12, 12, 237), "batch 12 of an epoch that has 12"),
        (Cursor(1, 2, 15, 277), "at step 15, but 1 epochs and 2 batches are 14 steps"),
        (Cursor(1, 2, 14, 278), "seen 278 samples, but 14 steps have 277"),
    ],
)
def test_a_cursor_that_makes_no_sense(cursor: Cursor, said: str) -> None:
    assert said in BATCHES.problem(cursor)
