"""Shares follow measured speed: soon where a worker changes, not at all where only its clock is unsteady."""

from __future__ import annotations

import pytest
from balance_cases import Course, best_s, run
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shoal.elastic.balance import Balancer, Measured, Rules, starting_costs

pytestmark = pytest.mark.unit
_STEADY = settings(max_examples=20, deadline=None, derandomize=True, database=None, phases=(Phase.generate,))


def slowed(factor: float, begin: int, end: int, workers: int = 2) -> Course:
    return run(lambda step: [*[1.0] * (workers - 1), factor if begin <= step < end else 1.0], 150)


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_a_slowed_worker_is_relieved_within_a_few_steps_and_comes_back(factor: float) -> None:
    course = slowed(factor, 40, 90)
    assert course.first_change_after(40) <= 10
    assert course.first_change_after(90) <= 20
    slow, fast = course.shares[80][1], course.shares[80][0]
    assert slow + fast == 64
    assert fast / slow == pytest.approx(factor, rel=0.15)
    assert course.shares[-1] == course.shares[0] == (32, 32)
    settled = course.seconds[60:90]
    assert sum(settled) <= 1.05 * len(settled) * best_s(64, [1.0, factor])


@_STEADY
@given(st.integers(0, 10_000), st.floats(0.0, 0.3), st.lists(st.floats(0.5, 3.0), min_size=2, max_size=5))
def test_noise_alone_changes_nothing_once_shares_are_right(seed: int, noise: float, costs: list[float]) -> None:
    course = run(lambda step: costs, 250, noise=noise, start=costs, seed=seed)
    assert course.changes == [], course.reasons


@_STEADY
@given(st.integers(0, 10_000), st.floats(0.0, 0.2), st.lists(st.floats(0.5, 3.0), min_size=2, max_size=4))
def test_unequal_speeds_are_found_and_kept(seed: int, noise: float, costs: list[float]) -> None:
    course = run(lambda step: costs, 300, noise=noise, seed=seed)
    assert len(course.changes) <= 4, course.reasons
    last = course.shares[-1]
    expected = max(share * cost for share, cost in zip(last, costs, strict=True))
    assert expected <= (1.12 + noise) * best_s(64, costs) + max(costs), (last, costs)


@_STEADY
@given(st.integers(0, 10_000), st.floats(0.0, 30.0), st.sampled_from([2.0, 4.0]))
def test_what_a_step_costs_beside_its_grains_is_found_out(seed: int, fixed: float, factor: float) -> None:
    costs = [1.0, factor]
    course = run(lambda step: costs, 300, fixed=fixed, seed=seed)
    assert course.balancer.fixed == pytest.approx(min(fixed, 32.0), abs=1.5) or not course.changes
    if course.shares[-1][1] > 0:
        assert course.seconds[-1] <= 1.07 * best_s(64, costs, fixed) + factor


def test_what_hits_all_alike_hides_nothing_and_changes_nothing() -> None:
    assert run(lambda step: [1.0, 1.0, 1.0], 300, noise=0.03, shared=3.0).changes == []
    course = run(lambda step: [1.0, 1.5 if step >= 50 else 1.0], 150, noise=0.03, shared=3.0)
    assert course.first_change_after(50) <= 20
    assert course.shares[-1][1] in range(23, 29)


def test_a_single_slow_step_changes_nothing() -> None:
    course = run(lambda step: [1.0, 50.0 if step % 10 == 9 else 1.0], 200)
    assert course.changes == []


def test_where_sending_takes_most_of_the_time_there_is_nothing_to_gain() -> None:
    assert run(lambda step: [1.0, 2.0], 100, common_s=2000.0).changes == []
    assert run(lambda step: [1.0, 2.0], 100, common_s=20.0).changes != []


def test_grains_are_whole() -> None:
    """With three grains among two workers, of which one is a little slower, nothing would be better."""
    assert run(lambda step: [1.0, 1.3], 100, grains=3).changes == []
    course = run(lambda step: [1.0, 2.5], 100, grains=4)
    assert course.shares[-1] == (3, 1)


def test_who_is_too_slow_for_a_grain_is_measured_now_and_then_and_comes_back() -> None:
    course = run(lambda step: [1.0, 20.0 if step < 1000 else 1.0], 2000, grains=4)
    resting = course.shares[100:1000]
    measured = [step for step, shares in enumerate(resting) if shares[1] > 0]
    assert 1 <= len(measured) <= len(resting) // 50
    assert all(shares[1] == 1 for shares in resting if shares[1])
    assert sum(course.seconds[100:1000]) <= 1.08 * 4.0 * 900, "to measure it costs too much"
    assert course.shares[-1] == (2, 2)


def test_the_slower_a_resting_worker_the_more_seldom_it_is_measured() -> None:
    def measured(cost: float) -> int:
        return sum(shares[1] > 0 for shares in run(lambda step: [1.0, cost], 3000, grains=4).shares[100:])

    assert measured(400.0) < measured(8.0)


def test_everyone_who_is_told_the_same_decides_the_same() -> None:
    one, other = Balancer(64, [1.0, 1.0, 1.0]), Balancer(64, [1.0, 1.0, 1.0])
    for step in range(100):
        told = [Measured(float(n), n * (1.0 + 0.1 * ((7 * step + 3 * at) % 5))) for at, n in enumerate(one.shares)]
        assert one.observe(told) == other.observe(list(told))
    assert one.shares == other.shares
    assert one.costs() == other.costs()


def test_a_first_guess_leaves_nobody_unmeasured() -> None:
    course = run(lambda step: [1.0, 1.0], 60, start=[1.0, 1000.0])
    assert course.shares[0] == (63, 1)
    assert course.shares[-1] == (32, 32), "the guess was wrong, and has been found out"


def test_more_workers_than_grains() -> None:
    """Whoever has no grain is measured in turn; guesses are relative, measurements are seconds."""
    course = run(lambda step: [0.003, 0.003, 0.001], 400, grains=2)
    assert course.shares[0] == (1, 1, 0)
    assert course.shares[-1] in {(1, 0, 1), (0, 1, 1), (0, 0, 2)}


def test_a_new_view_keeps_what_was_measured_and_guesses_the_rest() -> None:
    known = {"a": 0.002, "b": 0.004}
    assert starting_costs(["a", "b"], [1.0, 1.0], known) == (0.002, 0.004)
    assert starting_costs(["b", "c"], [1.0, 1.0], known) == (0.004, 0.004)
    assert starting_costs(["a", "c"], [1.0, 0.5], known) == (0.002, 0.004), "on half of the CPU it takes twice as long"
    assert starting_costs(["c", "d"], [1.0, 0.9], {}) == (1.0, 1.0), "guesses are rough"
    assert starting_costs(["c", "d"], [1.0, 0.25], {}) == (1.0, 4.0)


@pytest.mark.parametrize("rules", [Rules(gain=-1.0, certainty=0.0), Rules(certainty=0.0, confirmations=1)])
def test_without_hysteresis_noise_would_show(rules: Rules) -> None:
    """The tests above can fail."""
    assert len(run(lambda step: [1.0, 1.0], 400, noise=0.2, rules=rules).changes) > 4
