"""Gradients are placed into buckets: each once, in order, one dtype to a bucket."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.strategies.buckets import fuse
from shoal.strategies.names import STRATEGIES, check_name
from shoal.strategies.select import choose_strategy

pytestmark = pytest.mark.unit

sizes_of_gradients = st.lists(
    st.tuples(st.integers(1, 5000), st.sampled_from([torch.float32, torch.float64, torch.bfloat16])), max_size=40
)


@given(sizes_of_gradients, st.integers(1, 20_000))
def test_every_gradient_has_a_place_of_its_own(sizes: list[tuple[int, torch.dtype]], limit: int) -> None:
    slots, specs = fuse(sizes, limit)
    taken = [0] * len(specs)
    for slot, (numel, dtype) in zip(slots, sizes, strict=True):
        assert slot.start == taken[slot.bucket]  # side by side, in order
        assert slot.stop - slot.start == numel
        assert specs[slot.bucket].dtype == dtype
        taken[slot.bucket] = slot.stop
    assert taken == [spec.numel for spec in specs]


@given(sizes_of_gradients, st.integers(1, 20_000))
def test_a_bucket_is_closed_once_it_has_reached_its_size(sizes: list[tuple[int, torch.dtype]], limit: int) -> None:
    slots, specs = fuse(sizes, limit)
    for bucket, spec in enumerate(specs):
        last = max((slot for slot in slots if slot.bucket == bucket), key=lambda slot: slot.stop)
        assert last.start * spec.dtype.itemsize < limit  # before its last gradient it was not full
    full = [spec for spec in specs if spec.numel * spec.dtype.itemsize >= limit]
    assert len(specs) - len(full) <= len({dtype for _, dtype in sizes})  # at most one open of each kind


def test_the_first_bucket_is_small_so_that_reducing_starts_early() -> None:
    slots, specs = fuse([(1 << 18, torch.float32)] * 8, 4 << 20)
    assert [spec.numel for spec in specs] == [1 << 18, 4 << 18, 3 << 18]
    assert [slot.bucket for slot in slots] == [0, 1, 1, 1, 1, 2, 2, 2]


def test_auto_is_single_for_one_worker_and_allreduce_for_more() -> None:
    assert [choose_strategy("auto", workers).name for workers in (1, 2, 7)] == ["single", "allreduce", "allreduce"]
    assert {choose_strategy(name, 1).name for name in STRATEGIES} == set(STRATEGIES)


def test_an_unknown_strategy_is_answered_with_the_nearest() -> None:
    for refuse in (check_name, lambda name: choose_strategy(name, 2)):
        with pytest.raises(ConfigError, match=r"unknown strategy 'allreduced'.*'allreduce'"):
            refuse("allreduced")
