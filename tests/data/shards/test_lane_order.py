"""The order of samples that lie in blocks: a permutation, a pure function, kind to whoever reads blocks."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.cursor import Batches
from shoal.core.grains import shares
from shoal.data.shards.blocks import Blocks
from shoal.data.shards.lanes import LaneOrder
from shoal.data.shards.plan import LanePlan, plan_lanes
from shoal.data.shards.quality import expected_blocks, mixing

pytestmark = pytest.mark.unit


@st.composite
def planned(draw: st.DrawFn) -> tuple[int, LaneOrder]:
    """How much memory there may be, and an order that was planned for it."""
    blocks = Blocks(tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=60))), draw(st.floats(1, 1000)))
    batch = draw(st.integers(1, min(blocks.samples, 70)))
    batches = Batches(blocks.samples, batch, draw(st.integers(1, batch)))
    memory = int(blocks.nbytes * draw(st.floats(0.01, 3)))
    return memory, LaneOrder(draw(st.integers(0, 1 << 40)), blocks, plan_lanes(blocks, batches, memory))


def orders() -> st.SearchStrategy[LaneOrder]:
    return planned().map(lambda pair: pair[1])


@given(orders(), st.integers(0, 5))
def test_an_epoch_has_every_sample_once(order: LaneOrder, epoch: int) -> None:
    whole = order.at(epoch, 0, order.plan.samples)
    assert sorted(whole.tolist()) == list(range(order.plan.samples))


@given(orders(), st.data())
def test_any_position_is_found_without_those_before_it(order: LaneOrder, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, order.plan.samples - 1))
    stop = data.draw(st.integers(start, order.plan.samples))
    alone = LaneOrder(order.seed, order.blocks, order.plan).at(3, start, stop)
    assert alone.tolist() == order.at(3, 0, order.plan.samples)[start:stop].tolist()
    assert not alone.flags.writeable


@given(orders())
def test_where_a_position_is_located_is_where_its_sample_lies(order: LaneOrder) -> None:
    positions = np.arange(order.plan.samples)
    lanes, at = order.locate(positions)
    found = np.empty_like(positions)
    for position, lane, place in zip(positions, lanes.tolist(), at.tolist(), strict=True):
        (window,) = [one for one in order.windows(0, lane) if one.start <= place < one.stop]
        found[position] = order.numbers(window)[place - window.start]
    assert found.tolist() == order.at(0, 0, order.plan.samples).tolist()


@given(orders())
def test_a_block_is_needed_by_few_lanes_at_the_same_time_and_by_one_window_of_each(order: LaneOrder) -> None:
    needed: dict[int, list[tuple[int, int]]] = {}
    for lane in range(order.plan.lanes):
        for window in order.windows(1, lane):
            for piece in window.pieces:
                needed.setdefault(piece.block, []).append((lane, window.number))
    for block, users in needed.items():
        lanes = [lane for lane, _ in users]
        assert len(set(lanes)) == len(lanes), "two windows of a lane share a block"
        shortest = min(order.plan.length(lane) for lane in range(order.plan.lanes) if order.plan.length(lane))
        if order.blocks.rows[block] <= shortest + 1:
            assert len(lanes) <= 2
    # two lanes that share a block need it at the same end of the epoch
    for users in needed.values():
        if len(users) == 2 and all(order.plan.length(lane) > 0 for lane, _ in users):
            (first, early), (second, late) = sorted(users)
            if second == first + 1 and first % 2:
                assert (early, late) == (0, 0)


@given(orders())
def test_a_window_is_within_its_size_or_a_single_block(order: LaneOrder) -> None:
    for lane in range(order.plan.lanes):
        windows = order.windows(0, lane)
        assert sum(one.stop - one.start for one in windows) == order.plan.length(lane)
        for window in windows:
            assert len(window.pieces) == 1 or window.stop - window.start <= order.plan.window_rows


@given(planned())
def test_all_windows_that_are_drawn_from_fit_into_half_of_the_memory(given: tuple[int, LaneOrder]) -> None:
    memory, order = given
    plan, blocks = order.plan, order.blocks
    largest = max(plan.window_rows, *blocks.rows) * blocks.row_bytes
    assert plan.lanes == 1 or plan.lanes * largest <= memory / 2 + 1


@given(orders(), st.integers(1, 6))
def test_neighbouring_workers_share_one_lane_at_most(order: LaneOrder, workers: int) -> None:
    mine = [range(share.start, share.stop) for share in shares(order.plan.global_batch, [1.0] * workers)]
    lanes = [set(order.locate(np.asarray(share))[0].tolist()) for share in mine if len(share)]
    for one, other in itertools.combinations(lanes, 2):
        assert len(one & other) <= 1


@given(orders(), st.integers(1, 5), st.data())
def test_several_readers_get_whole_lanes_each_its_own(order: LaneOrder, parts: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(0, (order.plan.samples - 1) // order.plan.global_batch))
    start = batch * order.plan.global_batch
    stop = min(start + order.plan.global_batch, order.plan.samples)
    split = order.split(start, stop, parts)
    if order.plan.lanes < parts:
        assert split == []
        return
    assert len(split) == parts
    assert [p for a, b in split for p in range(a, b)] == list(range(start, stop))
    owners = [{int(lane) for lane in order.locate(np.arange(a, b))[0]} for a, b in split]
    assert all(not one & other for at, one in enumerate(owners) for other in owners[:at])


def test_without_a_shuffle_the_order_is_that_of_the_rows() -> None:
    blocks = Blocks((3, 5, 2), 8.0)
    order = LaneOrder(9, blocks, plan_lanes(blocks, Batches(10, 4, 1), 1 << 20, shuffle=False), shuffle=False)
    assert order.at(2, 0, 10).tolist() == list(range(10))
    assert order.at(2, 3, 7).tolist() == [3, 4, 5, 6]
    assert order.mixing is None


def test_the_order_stays_what_it_is() -> None:
    """A run that is resumed by a later version must find the same order."""
    blocks = Blocks((7,) * 30 + (4,), 100.0)
    order = LaneOrder(42, blocks, plan_lanes(blocks, Batches(214, 32, 4), 6000))
    assert order.plan == LanePlan(214, 32, (0, 8, 16, 24, 32), 7)
    assert order.at(1, 0, 12).tolist() == GOLDEN
    digest = hashlib.sha256(order.at(5, 0, 214).astype("<i8").tobytes()).hexdigest()
    assert digest == GOLDEN_DIGEST


GOLDEN = [172, 168, 170, 174, 171, 169, 173, 85, 99, 101, 100, 103]
GOLDEN_DIGEST = "29bc6420e0c1740c5cba828bacdb06235a8611cf76910fb387a41caa71b5af4e"


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_epochs_and_seeds_have_orders_of_their_own(seed: int) -> None:
    blocks = Blocks((10,) * 12, 10.0)
    plan = plan_lanes(blocks, Batches(120, 16, 2), 600)
    drawn = {tuple(LaneOrder(s, blocks, plan).at(e, 0, 120).tolist()) for s in (seed, seed + 1) for e in (0, 1)}
    assert len(drawn) == 4


def test_the_figure_of_quality_is_what_batches_really_draw_from() -> None:
    blocks = Blocks((50,) * 200, 100.0)
    batches = Batches(blocks.samples, 64, 1)
    for memory in (blocks.nbytes * 2, blocks.nbytes, blocks.nbytes // 4):
        order = LaneOrder(3, blocks, plan_lanes(blocks, batches, memory))
        seen = [len(set(blocks.of(order.at(0, at, at + 64)).tolist())) for at in range(0, 9984, 64)]
        full = expected_blocks(200.0, 64)
        told = mixing(blocks, order.plan)
        assert told.quality == pytest.approx(min(1.0, float(np.mean(seen)) / full), abs=0.08)
        assert f"{told.quality:.2f} of a full shuffle" in told.words


def test_more_memory_mixes_better() -> None:
    blocks = Blocks((50,) * 200, 100.0)
    batches = Batches(blocks.samples, 64, 1)
    figures = [mixing(blocks, plan_lanes(blocks, batches, memory)).quality for memory in (20_000, 100_000, 2_000_000)]
    assert figures == sorted(figures)
    assert figures[0] < 0.5 < figures[-1] == 1.0
