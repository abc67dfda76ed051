"""What committed steps tell, on series small enough to work out by hand."""

from __future__ import annotations

import pytest

from benchmarks.commits import (
    Commit,
    done_again,
    first_at,
    longest_pause,
    of_events,
    of_log,
    progress,
    usual_step_s,
)

pytestmark = pytest.mark.unit
FOR_EVER = 1e9


def series(*times: float, first: int = 1, size: int = 3, pid: int = 0) -> list[Commit]:
    return [Commit(time, first + number, size, pid) for number, time in enumerate(times)]


def test_a_step_log_is_read() -> None:
    assert of_log(["1.5 7 3", "2.25 8 2"], pid=9) == [Commit(1.5, 7, 3, 9), Commit(2.25, 8, 2, 9)]


def test_the_events_of_a_run_are_read_with_the_size_of_each_view() -> None:
    def step(time: float, number: int) -> dict[str, object]:
        return {"kind": "step", "time": time, "cursor": {"step": number}}

    events = [
        {"kind": "run_started", "time": 0.0, "workers": 3},
        step(1.0, 1),
        {"kind": "view", "time": 1.5, "number": 2, "members": ["a", "b"]},
        step(2.0, 2),
        {"kind": "eval", "time": 2.1},
        {"kind": "view", "time": 2.5, "number": 3, "members": ["a", "b", "c"]},
        step(3.0, 3),
    ]
    assert of_events(events) == [Commit(1.0, 1, 3), Commit(2.0, 2, 2), Commit(3.0, 3, 3)]


def test_the_same_step_of_several_workers_is_one_and_the_first_counts() -> None:
    both = series(1.0, 2.0, pid=1) + series(1.1, 1.9, pid=2)
    assert [(one.time, one.step) for one in progress(both)] == [(1.0, 1), (1.9, 2)]


def test_the_pause_spans_the_fault() -> None:
    commits = series(1.0, 1.1, 1.2, 1.9, 2.0)
    assert longest_pause(commits, since=1.25, until=FOR_EVER) == pytest.approx(0.7)


def test_the_pause_when_a_replacement_comes_counts_too() -> None:
    commits = series(1.0, 1.1, 1.2, 1.6, 2.5, 2.6)
    assert longest_pause(commits, since=1.15, until=FOR_EVER) == pytest.approx(0.9)


def test_pauses_before_the_fault_and_after_the_watch_do_not_count() -> None:
    commits = series(1.0, 5.0, 5.1, 5.2, 5.3, 9.0)
    assert longest_pause(commits, since=5.15, until=5.4) == pytest.approx(0.1)


def test_without_progress_after_the_fault_there_is_no_figure() -> None:
    assert longest_pause(series(1.0, 1.1), since=1.2, until=60.0) is None
    again = series(1.0, 1.1, 1.2) + series(5.0, 5.1, pid=2)
    assert longest_pause(again, since=1.3, until=60.0) is None


def test_going_back_to_a_checkpoint_is_part_of_the_pause_and_is_counted() -> None:
    # steps 1 to 4; killed; new processes go on after step 2
    commits = series(1.0, 1.1, 1.2, 1.3, pid=1) + series(6.0, 6.1, 6.2, 6.3, first=3, pid=2)
    assert longest_pause(commits, since=1.35, until=FOR_EVER) == pytest.approx(6.2 - 1.3)
    assert done_again(commits, since=1.35, until=FOR_EVER) == 2


def test_to_write_late_is_not_to_do_again() -> None:
    # step 2 is known before the kill; the other worker writes it down just after it
    commits = series(1.0, 1.1, pid=1) + series(1.0, 1.16, 2.0, pid=2)
    assert done_again(commits, since=1.15, until=FOR_EVER) == 0


def test_one_log_for_all_shows_what_is_done_again() -> None:
    commits = [Commit(1.0, 1, 3), Commit(1.1, 2, 3), Commit(2.0, 2, 2), Commit(2.1, 3, 2)]
    assert done_again(commits, since=1.5, until=FOR_EVER) == 1


def test_a_replacement_that_starts_where_the_others_are_does_nothing_again() -> None:
    commits = series(1.0, 1.1, 2.0, pid=1) + series(2.0, 2.1, first=3, pid=2)
    assert done_again(commits, since=1.5, until=FOR_EVER) == 0


def test_the_first_step_of_so_many() -> None:
    commits = series(1.0, 2.0) + series(3.0, 4.0, first=3, size=2) + series(5.0, first=5)
    assert first_at(commits, since=2.5) == pytest.approx(0.5)
    assert first_at(commits, since=2.5, size=3) == pytest.approx(2.5)
    assert first_at(commits, since=5.5) is None


def test_the_usual_step() -> None:
    assert usual_step_s(series(1.0, 1.1, 1.2, 9.0)) == pytest.approx(0.1)
    assert usual_step_s([]) is None
