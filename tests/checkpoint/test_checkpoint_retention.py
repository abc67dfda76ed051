"""The newest and the best are kept, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.checkpoint.retention import Mode, Record, best, ranked, to_remove

pytestmark = pytest.mark.unit

metas: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"loss": st.one_of(st.floats(), st.integers(-5, 5), st.none(), st.booleans(), st.just("low"))}
    ),
)
histories = st.dictionaries(st.integers(0, 60), metas, max_size=15).map(
    lambda steps: [Record(f"step-{step:08d}", step, meta) for step, meta in steps.items()]
)
modes: st.SearchStrategy[Mode] = st.sampled_from(["min", "max"])


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


@settings(deadline=None)
@given(histories, st.integers(1, 4), st.integers(0, 4), modes)
def test_exactly_the_newest_and_the_best_stay(records: list[Record], last: int, top: int, mode: Mode) -> None:
    removed = to_remove(records, last, top, "loss", mode)
    assert len(set(removed)) == len(removed)
    assert set(removed) <= {record.name for record in records}
    newest = sorted(records, key=lambda record: record.step)[-last:]
    measured = [record for record in records if number(record.meta.get("loss"))]
    sign = 1 if mode == "min" else -1
    for record in records:
        loss: Any = record.meta.get("loss")
        better = [
            other
            for other in measured
            if number(loss)
            and (sign * other.meta["loss"] < sign * loss or (other.meta["loss"] == loss and other.step > record.step))
        ]
        is_best = number(loss) and len(better) < top
        assert (record.name in removed) == (record not in newest and not is_best)


@settings(deadline=None)
@given(histories, st.integers(1, 4), st.integers(0, 4), modes)
def test_removing_is_settled_after_once(records: list[Record], last: int, top: int, mode: Mode) -> None:
    removed = to_remove(records, last, top, "loss", mode)
    left = [record for record in records if record.name not in removed]
    assert to_remove(left, last, top, "loss", mode) == []
    assert len(left) <= last + top


@settings(deadline=None)
@given(histories, modes)
def test_the_newest_and_the_best_are_never_removed(records: list[Record], mode: Mode) -> None:
    removed = to_remove(records, 1, 1, "loss", mode)
    if records:
        assert max(records, key=lambda record: record.step).name not in removed
    winner = best(records, "loss", mode)
    assert winner is None or winner.name not in removed


def test_nan_and_what_is_no_number_are_never_best() -> None:
    losses: list[Any] = [math.nan, None, "low", True, 3.0, math.inf, 2.0]
    records = [Record(str(step), step, {"loss": loss}) for step, loss in enumerate(losses)]
    records.append(Record("7", 7, {}))
    assert [record.name for record in ranked(records, "loss", "min")] == ["6", "4", "5"]
    assert [record.name for record in ranked(records, "loss", "max")] == ["5", "4", "6"]
    assert best(records, "other", "min") is None


def test_a_history_by_hand() -> None:
    losses = {10: 0.9, 20: 0.4, 30: 0.5, 40: 0.7, 50: 0.6}
    records = [Record(f"at {step}", step, {"loss": loss}) for step, loss in losses.items()]
    assert to_remove(records, 2, 1, "loss", "min") == ["at 10", "at 30"]
    assert to_remove(records, 1, 0, "loss", "min") == ["at 10", "at 20", "at 30", "at 40"]
    assert to_remove(records, 1, 2, "loss", "max") == ["at 20", "at 30"]


def test_keeping_none_is_refused() -> None:
    with pytest.raises(AssertionError, match="resumes"):
        to_remove([], 0, 1, "loss", "min")
