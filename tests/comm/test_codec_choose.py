"""The choice of a codec, as a pure decision: on several links, for several models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.comm.codecs.choose import (
    ABOUT_EQUAL,
    LEAST_GAIN,
    NONE,
    CodecCost,
    Measured,
    choose,
    combine,
    is_worth_trying,
    predict_none,
)

pytestmark = pytest.mark.unit

SHARED_MEMORY, GIGABIT, TENTH = 2e9, 117e6, 11.7e6  # bytes/s

# seconds for each byte of gradient, as they were measured on one core
COSTS = (
    CodecCost("fp16", 0.5, 0.55e-9, 0.38e-9, 2e-4),
    CodecCost("bf16", 0.5, 0.55e-9, 0.38e-9, 1.7e-3),
    CodecCost("int8", 0.251, 0.92e-9, 0.47e-9, 1.1e-2),
    CodecCost("powersgd:4", 0.004, 0.62e-9, 0.19e-9, 0.8),
)


def measured(compute_s: float, size: int, bandwidth: float, exposed_s: float | None = None) -> Measured:
    costs = tuple(replace(c, encode_s=c.encode_s * size, decode_s=c.decode_s * size) for c in COSTS)
    return Measured(compute_s, size, bandwidth, 2e-4, exposed_s, costs)


def mlp(bandwidth: float, exposed_s: float | None = None) -> Measured:
    """10.5 million parameters, quick to compute."""
    return measured(0.12, 42_000_000, bandwidth, exposed_s)


def resnet(bandwidth: float, exposed_s: float | None = None) -> Measured:
    """ResNet-20: slow to compute, little to send."""
    return measured(0.45, 1_100_000, bandwidth, exposed_s)


def test_through_shared_memory_nothing_is_coded() -> None:
    assert choose(mlp(SHARED_MEMORY), 2).name == NONE
    assert choose(resnet(SHARED_MEMORY), 4).name == NONE


def test_over_a_slow_link_a_large_gradient_is_coded() -> None:
    for bandwidth in (GIGABIT, TENTH):
        choice = choose(mlp(bandwidth), 2)
        assert choice.name == "powersgd:4"
        assert choice.predicted_s["powersgd:4"] < 0.5 * choice.predicted_s[NONE]
        assert "instead of" in choice.reason


def test_a_small_gradient_is_not_coded_where_backward_hides_it() -> None:
    assert choose(resnet(GIGABIT), 2).name == NONE
    assert choose(resnet(TENTH, exposed_s=0.01), 2).name == NONE
    assert choose(resnet(TENTH), 2).name != NONE  # nothing hides a fifth of the step


def test_of_those_about_equally_fast_the_most_precise_is_chosen() -> None:
    """A long step in which int8 and PowerSGD both make what is sent small beside the computing."""
    choice = choose(measured(1.0, 2_200_000, TENTH), 2)
    assert choice.predicted_s["powersgd:4"] < choice.predicted_s["int8"] <= 1.05 * choice.predicted_s["powersgd:4"]
    assert choice.name == "int8"
    assert choose(measured(0.05, 40_000, 1e5, None), 2).name == "powersgd:4"


def test_waiting_for_a_slower_worker_is_not_the_links_fault() -> None:
    slow, quick = measured(0.4, 42_000_000, SHARED_MEMORY, 0.005), measured(0.1, 42_000_000, SHARED_MEMORY, 0.305)
    both = combine([quick, slow])
    assert (both.compute_s, both.exposed_s) == (0.4, 0.005)
    assert choose(both, 2).name == NONE
    assert predict_none(quick, 2) < 0.1 + 0.025  # the exchange itself takes 21 ms


def test_a_group_is_as_slow_as_its_slowest_part() -> None:
    one, other = mlp(GIGABIT), replace(mlp(TENTH), latency_s=0.01)
    other = replace(other, costs=tuple(replace(c, encode_s=2 * c.encode_s, error=0.9) for c in other.costs))
    both = combine([one, other])
    assert both.bandwidth == TENTH
    assert both.latency_s == 0.01
    assert [c.encode_s for c in both.costs] == [c.encode_s for c in other.costs]
    assert {c.error for c in both.costs} == {0.9}
    assert both.exposed_s is None


def test_payloads_go_to_every_worker_so_many_workers_gain_less() -> None:
    few, many = choose(mlp(GIGABIT), 2), choose(mlp(GIGABIT), 8)
    assert few.predicted_s["bf16"] < few.predicted_s[NONE]
    assert many.predicted_s["bf16"] > many.predicted_s[NONE]


def test_one_worker_needs_no_codec() -> None:
    assert choose(mlp(TENTH), 1).name == NONE


def test_codecs_are_not_even_tried_where_they_cannot_gain_enough() -> None:
    assert not is_worth_trying(mlp(1e10), 2)
    assert not is_worth_trying(resnet(GIGABIT), 2)
    assert not is_worth_trying(mlp(TENTH), 1)
    assert is_worth_trying(mlp(GIGABIT), 2)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    compute_s=st.floats(1e-3, 10),
    size=st.integers(1000, 10**9),
    bandwidth=st.floats(1e5, 1e10),
    exposed_s=st.none() | st.floats(0, 10),
    workers=st.integers(2, 16),
)
def test_a_codec_is_chosen_only_where_it_is_clearly_faster(
    compute_s: float, size: int, bandwidth: float, exposed_s: float | None, workers: int
) -> None:
    found = measured(compute_s, size, bandwidth, exposed_s)
    choice = choose(found, workers)
    assert choice.name == NONE or is_worth_trying(found, workers)
    none_s = choice.predicted_s[NONE]
    if choice.name == NONE:
        assert all(seconds > (1 - LEAST_GAIN) * none_s for name, seconds in choice.predicted_s.items() if name != NONE)
        return
    chosen_s = choice.predicted_s[choice.name]
    assert chosen_s <= (1 - LEAST_GAIN) * none_s
    assert chosen_s <= (1 + ABOUT_EQUAL) * min(choice.predicted_s.values())
    more_precise = [cost.name for cost in COSTS if cost.error < {c.name: c.error for c in COSTS}[choice.name]]
    limit = min((1 + ABOUT_EQUAL) * min(choice.predicted_s.values()), (1 - LEAST_GAIN) * none_s)
    assert all(choice.predicted_s[name] > limit for name in more_precise)
