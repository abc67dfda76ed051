"""How many workers are wished for: within bounds, fewer on slower links, and never back and forth."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.strategies import sizing
from shoal.strategies.pacing import MOST, SHARE
from shoal.strategies.sizing import REST, VOTES, Bounds, Measured, SizeWish, Sizing, best, measured, next_size, step_s

_STEADY = settings(max_examples=100, deadline=None, derandomize=True, database=None)
SECONDS = st.floats(1e-6, 1e3)
ROUNDS = st.builds(
    Measured,
    workers=st.integers(1, 12),
    computing_s=SECONDS,
    sending_s=SECONDS,
    taken=st.just(0.5),
    spread=st.integers(1, 600),
    share=st.sampled_from([0.0, SHARE]),
    coded=st.booleans(),
)
BOUNDS = st.tuples(st.integers(1, 12), st.integers(0, 12)).map(lambda pair: Bounds(pair[0], pair[0] + pair[1]))


def after(rounds: int, seen: Measured, bounds: Bounds, last: Sizing | None = None, view: int = 1) -> list[SizeWish]:
    """What is wished for in so many rounds, all alike."""
    wishes, last = [], last if last is not None else Sizing()
    for _ in range(rounds):
        last, wish = next_size(last, view, seen, bounds)
        wishes += [wish] if wish is not None else []
    return wishes


def test_a_slow_link_is_left_by_all_but_one_and_the_reason_says_why() -> None:
    seen = measured(3, 4, 4, 4, computing_s=0.1, sending_s=0.9, coded=False)
    assert after(REST + VOTES, seen, Bounds(1, 3)) == [SizeWish(1, "sending takes 90 % of the time: 3 workers -> 1")]
    assert after(REST + VOTES, seen, Bounds(2, 3))[0].workers == 2


def test_a_fast_link_is_used_by_as_many_as_may_be_but_no_more_than_twice_as_many_at_once() -> None:
    seen = measured(2, 4, 4, 4, computing_s=0.99, sending_s=0.01, coded=False)
    assert [wish.workers for wish in after(50, seen, Bounds(1, 9))] == [4]
    assert [wish.workers for wish in after(50, seen, Bounds(1, 3))] == [3]


def test_a_lone_worker_tries_one_more_and_remembers_what_that_cost() -> None:
    alone = measured(1, 4, 4, 4, computing_s=1.0, sending_s=0.0, coded=False)
    assert after(50, alone, Bounds(1, 4)) == [
        SizeWish(2, "one worker computes alone, and more may help it: 1 worker -> 2")
    ]
    pair = measured(2, 4, 4, 4, computing_s=0.5, sending_s=30.0, coded=False)
    last, wish = next_size(Sizing(view=2, rest=0, votes=VOTES - 1, towards=1), 2, pair, Bounds(1, 4))
    assert wish == SizeWish(1, "sending takes 98 % of the time: 2 workers -> 1")
    assert after(100, alone, Bounds(1, 4), last, view=3) == []


def test_where_the_rounds_grow_by_themselves_a_slow_link_is_no_reason_to_shrink() -> None:
    seen = measured(3, "auto", 8, 8, computing_s=0.08, sending_s=1.0, coded=False)  # 300 steps would do
    assert seen.spread == MOST
    assert after(50, seen, Bounds(1, 3)) == []
    cut = measured(3, "auto", 32, 8, computing_s=0.08, sending_s=1.0, coded=False)  # but an epoch has no more than 8
    assert [wish.workers for wish in after(50, cut, Bounds(1, 3))] == [1]


def test_coded_differences_are_sent_to_everyone_so_there_can_be_too_many() -> None:
    seen = Measured(8, 1.0, 14.0, 0.5, spread=4, coded=True)
    assert 1 < best(seen, 2.0, Bounds(1, 8)) < 8


def test_nothing_is_wished_twice_in_a_view_but_the_opposite_may_be() -> None:
    slow = measured(2, 4, 4, 4, computing_s=0.1, sending_s=1.0, coded=False)
    last, bounds = Sizing(), Bounds(1, 4)
    for _ in range(REST + VOTES):
        last, wish = next_size(last, 1, slow, bounds)
    assert wish is not None
    assert after(50, slow, bounds, last) == []
    fast = measured(2, 4, 4, 4, computing_s=1.0, sending_s=0.001, coded=False)
    assert [wish.workers for wish in after(50, fast, bounds, last)] == [4]


def test_a_new_view_begins_to_count_anew() -> None:
    slow, bounds = measured(2, 4, 4, 4, computing_s=0.1, sending_s=1.0, coded=False), Bounds(1, 4)
    last = Sizing()
    for view in range(1, 20):
        for _ in range(REST + VOTES - 1):
            last, wish = next_size(last, view, slow, bounds)
            assert wish is None


def test_what_is_remembered_travels_as_plain_values() -> None:
    last = Sizing(3, 1, 2, 0, None, 0.25)
    assert Sizing(*last.to_json()) == last


@_STEADY
@given(ROUNDS, BOUNDS, st.one_of(st.none(), SECONDS))
def test_what_is_wished_stays_within_the_bounds(seen: Measured, bounds: Bounds, unit_s: float | None) -> None:
    found = best(seen, unit_s, bounds)
    assert found == seen.workers or bounds.least <= found <= bounds.most


@_STEADY
@given(ROUNDS, BOUNDS, st.floats(1.0, 100.0))
def test_a_slower_link_never_asks_for_more_workers(seen: Measured, bounds: Bounds, slower: float) -> None:
    seen = replace(seen, workers=max(bounds.least, min(seen.workers, bounds.most)))
    unit_s = seen.sending_s
    assert best(seen, unit_s * slower, bounds) <= best(seen, unit_s, bounds)


@_STEADY
@given(ROUNDS.filter(lambda seen: seen.workers > 1), BOUNDS)
def test_a_change_is_worth_it(seen: Measured, bounds: Bounds) -> None:
    unit_s = seen.sending_s / sizing.sent(seen.workers, seen.coded)
    found = best(seen, unit_s, bounds)
    if found != seen.workers:
        assert step_s(found, seen, unit_s) <= 0.9 * step_s(seen.workers, seen, unit_s)


def sizes(truth: Measured, bounds: Bounds, noise: float, seed: int, rounds: int = 150) -> list[int]:
    """The numbers of workers that a run has, one after the other, on a link and machines that stay as they are but are
    never measured twice alike. A wish is carried out some rounds later."""
    draw = random.Random(seed)
    workers, view, last, found = truth.workers, 1, Sizing(), [truth.workers]
    arrives, coming = -1, workers
    work_s, unit_s = truth.computing_s * truth.workers, truth.sending_s
    for now in range(rounds):
        if now == arrives:
            workers, view = coming, view + 1
            found.append(workers)
        computing_s = work_s / workers * draw.uniform(1 - noise, 1 + noise)
        sending_s = unit_s * sizing.sent(workers, truth.coded) * draw.uniform(1 - noise, 1 + noise)
        seen = replace(truth, workers=workers, computing_s=computing_s, sending_s=sending_s)
        last, wish = next_size(last, view, seen, bounds)
        if wish is not None:
            arrives, coming = now + draw.randint(1, 8), wish.workers
    return found


def turns(found: list[int]) -> int:
    ups = [after > before for before, after in pairwise(found)]
    return sum(one != other for one, other in pairwise(ups))


@settings(parent=_STEADY, max_examples=60)
@given(ROUNDS, BOUNDS, st.integers(0, 10**6))
def test_noise_makes_nobody_come_and_go(truth: Measured, bounds: Bounds, seed: int) -> None:
    truth = replace(truth, workers=max(bounds.least, min(truth.workers, bounds.most)))
    found = sizes(truth, bounds, 0.08, seed)
    trial = found[:3] == [1, 2, 1]  # nobody knew what sending costs
    assert turns(found) == (1 if trial else 0), found


def test_without_what_is_remembered_a_lone_worker_would_try_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Measured(1, 1.0, 40.0, 0.5, spread=4)
    assert sizes(truth, Bounds(1, 4), 0.05, 1) == [1, 2, 1]
    known = sizing._unit
    monkeypatch.setattr(sizing, "_unit", lambda before, seen: None if seen.workers == 1 else known(before, seen))
    assert turns(sizes(truth, Bounds(1, 4), 0.05, 1)) > 3
