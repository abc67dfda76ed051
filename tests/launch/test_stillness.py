"""When a run that was asked to stop is waited for, and when it has come to a standstill: on made-up clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shoal.comm.control import Reading
from shoal.elastic.status import Still
from shoal.launch.hang import Pace
from shoal.launch.stillness import BUSY_S, STILL_S, Sight, Stillness, stuck

pytestmark = pytest.mark.unit

STUCK = Sight(Reading(step=14, phase="forward", view=1, ticks=70, waiting=False, steps_done=14), computed_s=5.0)
WAITS = Sight(Reading(step=14, phase="reduce", view=1, ticks=71, waiting=True, steps_done=14), computed_s=5.0)


def standstill(
    at: Callable[[float], dict[str, Sight]], step_s: float = 0.0, seconds: float = 20.0, longest_s: float = 0.0
) -> object:
    """When and how a standstill is found, looking three times a second; None if it is not."""
    judge, now_s = Stillness(), 0.0
    while now_s < seconds:
        sights = at(now_s)
        found = stuck(sights, judge.observe(100.0 + now_s, sights, Pace(step_s, longest_s)))
        if found is not None:
            return round(now_s, 1), list(found)
        now_s += 1 / 3
    return None


def test_who_does_not_get_on_is_found_and_who_waits_for_it_is_not_blamed() -> None:
    assert standstill(lambda now_s: {"a": WAITS, "b": STUCK, "c": WAITS}) == (STILL_S + 0.3, ["b"])
    judge = Stillness()
    judge.observe(0.0, {"a": STUCK, "b": WAITS}, Pace())
    still = {"a": Still(4.0, False, 14, "forward"), "b": Still(4.0, True, 14, "reduce")}
    assert judge.observe(4.0, {"a": STUCK, "b": WAITS}, Pace()) == still
    assert stuck(["a", "b"], still) == {"a": still["a"]}
    assert stuck(["a", "b", "c"], still) is None, "nobody knows that the third does not move"
    assert stuck([], still) is None


def test_where_all_wait_for_one_another_nobody_is_to_blame() -> None:
    """One that looks for something to do, again and again, waits as well."""

    def at(now_s: float) -> dict[str, Sight]:
        looks = replace(WAITS.reading, ticks=int(4 * now_s))
        return {"a": WAITS, "b": replace(WAITS, reading=looks)}

    assert standstill(at) == (STILL_S + 0.3, [])


def computing(now_s: float) -> Sight:
    return replace(STUCK, computed_s=5.0 + 0.2 * now_s)  # on a busy machine


def in_phase(sight: Sight, phase: str, **reading: int) -> Sight:
    return replace(sight, reading=replace(sight.reading, phase=phase, **reading))


def idle(now_s: float) -> Sight:
    return replace(STUCK, computed_s=5.0 + 0.01 * now_s)  # but for the thread that says that it lives


MOVING = {
    "it computes what no step does": lambda now_s: in_phase(computing(now_s), "update"),
    "it evaluates": lambda now_s: in_phase(computing(now_s), "evaluate"),
    "it computes its first step": lambda now_s: in_phase(computing(now_s), "forward", steps_done=0),
    "it computes, pass after pass": lambda now_s: in_phase(computing(now_s), "forward", ticks=int(now_s / 4)),
    "it gets on": lambda now_s: replace(STUCK, reading=replace(STUCK.reading, ticks=int(now_s))),
    "it does other steps": lambda now_s: replace(STUCK, reading=replace(STUCK.reading, steps_done=int(now_s / 2))),
    "it waits for a disk": lambda now_s: replace(STUCK, in_kernel=True),
    "it saves": lambda now_s: replace(STUCK, reading=replace(STUCK.reading, phase="save")),
}


@pytest.mark.parametrize("how", MOVING)
def test_a_step_that_is_slow_and_moves_is_waited_for(how: str) -> None:
    assert standstill(lambda now_s: {"a": WAITS, "b": MOVING[how](now_s)}) is None


def test_a_worker_that_sleeps_moves_no_more_than_its_sign_of_life() -> None:
    assert standstill(lambda now_s: {"a": idle(now_s)}) == (STILL_S + 0.3, ["a"])


def test_who_computes_while_it_waits_does_not_move() -> None:
    """Some waits look again and again."""
    assert standstill(lambda now_s: {"a": replace(WAITS, computed_s=now_s)}) == (STILL_S + 0.3, [])


def test_who_computes_for_much_longer_than_a_step_takes_does_not_move() -> None:
    """And who waits for it is not to blame."""
    assert standstill(lambda now_s: {"a": WAITS, "b": computing(now_s)}) == (BUSY_S + 0.3, ["b"])
    assert standstill(lambda now_s: {"b": computing(now_s)}, step_s=0.8) == (8.3, ["b"]), "ten steps' time"
    assert standstill(lambda now_s: {"b": computing(now_s)}, longest_s=9.0) == (9.3, ["b"]), "as long as the first took"


def test_a_step_that_takes_as_long_as_others_is_waited_for_though_it_computes() -> None:
    assert standstill(lambda now_s: {"a": WAITS, "b": computing(now_s)}, step_s=2.0) is None
    assert standstill(lambda now_s: {"a": WAITS, "b": computing(now_s)}, longest_s=25.0) is None


def test_who_has_waited_for_long_and_computes_now_has_just_begun() -> None:
    def at(now_s: float) -> dict[str, Sight]:
        if now_s < 4:
            return {"a": in_phase(computing(now_s), "update"), "b": WAITS}
        return {"a": WAITS, "b": replace(computing(now_s), reading=replace(WAITS.reading, waiting=False))}

    assert standstill(at) == (4 + BUSY_S + 0.3, ["b"])


def test_where_steps_wait_for_long_anyway_so_may_this_one() -> None:
    assert standstill(lambda now_s: {"a": STUCK}, step_s=4.0) == (8.3, ["a"])


def test_the_end_of_a_worker_is_a_move() -> None:
    found = standstill(lambda now_s: {"a": WAITS, "b": STUCK} if now_s < 1.9 else {"a": WAITS})
    assert found == (5.3, [])
