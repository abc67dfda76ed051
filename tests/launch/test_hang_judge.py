"""Who hangs and who only waits for one that does: pure, on made-up clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.comm.control import Reading
from shoal.launch.hang import HangJudge, Hung, Pace

pytestmark = pytest.mark.unit

START = Reading(step=0, phase="start", view=0, ticks=0, waiting=False, steps_done=0)


def at_work(steps: int, *, waiting: bool = False, extra_ticks: int = 0) -> Reading:
    """A worker that has done so many steps and is in the middle of the next."""
    phase = "reduce" if waiting else "forward"
    return Reading(steps + 1, phase, 1, 10 * steps + extra_ticks, waiting, steps)


def warmed(judge: HangJudge, keys: str, seconds_per_step: float, steps: int = 10) -> float:
    """Have all workers do steps at this pace; returns the time of the last."""
    now = 0.0
    for done in range(steps + 1):
        now = done * seconds_per_step
        assert judge.observe(now, dict.fromkeys(keys, at_work(done))) == []
    return now


def test_a_worker_without_progress_hangs_and_those_that_wait_for_it_do_not() -> None:
    judge = HangJudge(hang_s=60, hang_steps=10, start_s=600)
    now = warmed(judge, "ab", 1.0)
    seen = {"a": at_work(10), "b": at_work(10, waiting=True)}
    judge.observe(now + 1, seen)
    assert judge.observe(now + 60, seen) == []
    assert judge.observe(now + 61, seen) == [Hung("a", 61.0, 11, "forward")]


def test_if_all_wait_nobody_hangs() -> None:
    judge = HangJudge(60, 10, 600)
    now = warmed(judge, "ab", 1.0)
    seen = dict.fromkeys("ab", at_work(10, waiting=True))
    assert [judge.observe(now + late, seen) for late in (1, 100, 10_000)] == [[], [], []]


def test_slow_steps_make_the_limit_longer() -> None:
    judge = HangJudge(60, 10, 600)
    now = warmed(judge, "a", 30.0)
    assert judge.limit_s == 300
    assert judge.observe(now + 299, {"a": at_work(10)}) == []
    assert [one.key for one in judge.observe(now + 301, {"a": at_work(10)})] == ["a"]


def test_the_first_step_may_take_long_to_compile() -> None:
    judge = HangJudge(60, 10, 600)
    compiling = replace(START, phase="forward", ticks=3)
    judge.observe(0, {"a": compiling})
    assert judge.observe(599, {"a": compiling}) == []
    assert judge.observe(601, {"a": compiling}) == [Hung("a", 601.0, 0, "forward")]


def test_a_long_first_step_is_no_measure_of_the_others() -> None:
    judge = HangJudge(60, 10, 600)
    judge.observe(0, {"a": START})
    judge.observe(500, {"a": at_work(1)})
    assert judge.limit_s == 60


def test_the_pace_knows_the_usual_step_and_the_longest() -> None:
    judge = HangJudge(60, 10, 600)
    assert judge.pace == Pace(0.0, 0.0)
    now = warmed(judge, "a", 2.0)
    assert judge.pace == Pace(2.0, 2.0)
    judge.observe(now + 9.0, {"a": at_work(11)})
    assert judge.pace == Pace(2.0, 9.0)
    compiling = HangJudge(60, 10, 600)
    for now, done in ((0.0, 0), (40.0, 1), (41.0, 2)):
        compiling.observe(now, {"a": at_work(done)})
    assert compiling.pace == Pace(1.0, 40.0), "the first is no measure of the others, but of what may happen again"


def test_a_newcomer_gets_the_time_of_a_start_though_others_are_quick() -> None:
    judge = HangJudge(60, 10, 600)
    now = warmed(judge, "a", 0.1)
    for late in range(1, 500):
        hung = judge.observe(now + late, {"a": at_work(10 + late), "b": START})
        assert hung == []


def test_who_has_waited_long_is_not_hung_when_the_wait_ends() -> None:
    judge = HangJudge(60, 10, 600)
    now = warmed(judge, "a", 1.0)
    judge.observe(now + 1, {"a": at_work(10, waiting=True)})
    assert judge.observe(now + 200, {"a": at_work(10)}) == []
    assert judge.observe(now + 259, {"a": at_work(10)}) == []
    assert [one.key for one in judge.observe(now + 261, {"a": at_work(10)})] == ["a"]


def test_any_tick_is_progress() -> None:
    judge = HangJudge(60, 10, 600)
    now = warmed(judge, "a", 1.0)
    for minute in range(1, 20):  # an evaluation between two steps, say
        assert judge.observe(now + 59 * minute, {"a": at_work(10, extra_ticks=minute)}) == []


def test_who_has_ended_is_forgotten_and_a_successor_starts_anew() -> None:
    judge = HangJudge(60, 10, 600)
    now = warmed(judge, "a", 1.0)
    assert judge.observe(now + 100, {"a": at_work(10)}) != []
    assert judge.observe(now + 101, {}) == []
    assert judge.observe(now + 102, {"a": START}) == []
    assert judge.observe(now + 200, {"a": START}) == []


def test_the_longest_comes_first() -> None:
    judge = HangJudge(60, 10, 600)
    now = warmed(judge, "ab", 1.0)
    judge.observe(now + 5, {"a": at_work(10, extra_ticks=1), "b": at_work(10)})
    hung = judge.observe(now + 100, {"a": at_work(10, extra_ticks=1), "b": at_work(10)})
    assert [one.key for one in hung] == ["b", "a"]


moves = st.lists(
    st.tuples(
        st.floats(0.01, 30),  # seconds until the next look
        st.dictionaries(st.sampled_from("abc"), st.sampled_from(["tick", "step", "wait", "still", "gone"])),
    ),
    max_size=60,
)


@given(moves)
def test_whatever_happens_only_the_idle_are_accused(history: list[tuple[float, dict[str, str]]]) -> None:
    """Against a plain account of when each was last seen to get on, to wait, or to come."""
    judge = HangJudge(hang_s=20, hang_steps=3, start_s=50)
    now, readings, lively = 0.0, dict.fromkeys("abc", START), dict.fromkeys("abc", 0.0)
    judge.observe(now, readings)
    for pause_s, doings in history:
        now += pause_s
        for key in "abc":
            doing = doings.get(key, "still")
            before = readings.get(key, START)
            if doing == "gone":
                readings.pop(key, None)
                continue
            came = key not in readings
            ticks = before.ticks + (doing in ("tick", "step"))
            steps = before.steps_done + (doing == "step")
            after = replace(before, ticks=ticks, steps_done=steps, waiting=doing == "wait")
            if came or after != before or after.waiting:
                lively[key] = now
            readings[key] = after
        hung = judge.observe(now, readings)
        for one in hung:
            assert not readings[one.key].waiting
            assert one.seconds == pytest.approx(now - lively[one.key])
            assert one.seconds > 20
            assert readings[one.key].steps_done > 0 or one.seconds > 50
        accused = {one.key for one in hung}
        for key, reading in readings.items():
            if key not in accused and not reading.waiting:
                assert now - lively[key] <= max(judge.limit_s, 50)
