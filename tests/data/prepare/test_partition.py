"""Partitioners are pure functions: every row in exactly one shard, shards of equal size, the same for the same rows."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.data.partition.cuts import Placed, cut_at, cut_between_values, in_order, place
from shoal.data.partition.deal import blocks, grouped, round_robin, serpentine
from shoal.data.partition.hashing import hash_values
from shoal.data.partition.plan import Plan, border_of, shards_of, skew_of
from shoal.data.partition.sample import Line, Merged, Sample
from shoal.data.partition.scheme import Partition

pytestmark = pytest.mark.unit

Runs = list[npt.NDArray[Any]]
KEYS = st.lists(st.lists(st.one_of(st.integers(0, 12), st.integers(0, 10**6)), max_size=60), min_size=1, max_size=6)


def cut(runs: Runs, shards: int, *, slack: float = 0.025, keep: bool = False, samples: int = 1024) -> list[Placed]:
    """Cut sorted runs into shards, as a job does."""
    lines = [Line(run) for run in runs]
    merged = Merged.of([Sample.of(line, samples) for line in lines])
    mean = merged.rows / shards
    if keep:
        cuts = cut_between_values(merged, shards)
    else:
        cuts = cut_at(merged, [mean * shard for shard in range(1, shards)], slack * mean)
    return in_order(place(one, [line.span(one.value) for line in lines]) for one in cuts)


def parts(runs: Runs, borders: list[Placed]) -> list[list[Any]]:
    """The rows of each shard, run by run."""
    edges = [(0,) * len(runs), *(border.positions for border in borders), tuple(map(len, runs))]
    return [
        [value for run, start, stop in zip(runs, low, high, strict=True) for value in run[start:stop].tolist()]
        for low, high in pairwise(edges)
    ]


@given(KEYS, st.integers(1, 9), st.booleans(), st.sampled_from([3, 1024]))
def test_every_row_of_a_line_is_in_exactly_one_shard_and_shards_are_in_order(
    keys: list[list[int]], shards: int, keep: bool, samples: int
) -> None:
    runs = [np.sort(np.array(run, np.int64)) for run in keys]
    if not sum(map(len, runs)):
        return
    found = parts(runs, cut(runs, shards, keep=keep, samples=samples))
    assert len(found) == shards
    assert Counter(value for part in found for value in part) == Counter(value for run in keys for value in run)
    full = [part for part in found if part]
    assert all(max(low) <= min(high) for low, high in pairwise(full))


@given(KEYS, st.integers(1, 9))
def test_keeping_keys_whole_leaves_each_in_one_shard(keys: list[list[int]], shards: int) -> None:
    runs = [np.sort(np.array(run, np.int64)) for run in keys]
    if not sum(map(len, runs)):
        return
    found = [set(part) for part in parts(runs, cut(runs, shards, keep=True))]
    assert sum(map(len, found)) == len(set().union(*found))


@given(KEYS, st.integers(1, 9), st.integers(0, 12))
def test_a_key_is_found_only_in_the_shards_that_the_plan_names(keys: list[list[int]], shards: int, key: int) -> None:
    runs = [np.sort(np.array(run, np.int64)) for run in keys]
    if not sum(map(len, runs)):
        return
    borders = cut(runs, shards, slack=0.0)
    plan = Plan(by="range", column="k", shards=shards, borders=tuple(map(border_of, borders)))
    held = {shard for shard, part in enumerate(parts(runs, borders)) if key in part}
    assert held <= set(shards_of(plan, key))
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def zipf(rows: int, seed: int = 7) -> npt.NDArray[np.int64]:
    """Keys of which the most frequent one has nearly a fifth of the rows."""
    return np.random.default_rng(seed).zipf(1.2, rows) % 10**6


@pytest.mark.parametrize("by", ["key", "range"])
@pytest.mark.parametrize("spilled", [1, 24])
def test_zipf_keys_are_balanced_where_plain_hashing_is_far_from_it(by: str, spilled: int) -> None:
    keys = zipf(200_000)
    hashes = hash_values(pa.array(keys))
    line = hashes if by == "key" else keys
    runs = [np.sort(run) for run in np.array_split(line, spilled)]
    sizes = [len(part) for part in parts(runs, cut(runs, 16))]
    plain = np.bincount((hashes % np.uint64(16)).astype(np.int64)).tolist()
    assert skew_of(sizes) <= 1.1
    assert skew_of(plain) > 2.5


def test_heavy_keys_are_spread_and_light_ones_are_whole() -> None:
    keys = zipf(100_000)
    borders = cut([np.sort(keys)], 16)
    plan = Plan(by="range", shards=16, borders=tuple(map(border_of, borders)))
    counts = Counter(keys.tolist())
    spread = {key for key in counts if len(shards_of(plan, key)) > 1}
    assert 1 in spread
    assert all(counts[key] >= 0.025 * len(keys) / 16 for key in spread)


def test_the_sketch_counts_a_heavy_key_within_a_step_of_the_sample() -> None:
    runs = [np.sort(run) for run in np.array_split(zipf(50_000), 5)]
    merged = Merged.of([Sample.of(Line(run), 100) for run in runs])
    number = merged.values.index(1)
    counted = merged.through[number] - merged.before[number]
    assert abs(counted - sum(int((run == 1).sum()) for run in runs)) <= 50_000 / 100


def test_text_null_and_nan_have_their_places_in_the_line() -> None:
    texts = pa.array(["a", "b", "b", None, None])
    line = Line.of(texts)
    assert [line.span(value) for value in ("a", "b", "c", None)] == [(0, 1), (1, 3), (3, 3), (3, 5)]
    numbers = Line.of(pa.array([1.0, 2.0, float("nan"), float("nan"), None]))
    assert numbers.span(float("nan")) == (2, 4)
    assert Sample.of(numbers).values[-1] is None
    merged = Merged.of([Sample.of(numbers), Sample.of(numbers)])
    assert merged.rows == 10
    assert merged.through.tolist() == [2.0, 4.0, 8.0, 10.0]


@given(st.integers(0, 1000), st.integers(0, 200), st.integers(1, 17))
def test_dealing_is_even_and_goes_on_where_it_was(first: int, rows: int, shards: int) -> None:
    for deal in (round_robin, serpentine):
        dealt = deal(first, rows, shards)
        assert dealt.tolist() == [*deal(first, rows // 2, shards), *deal(first + rows // 2, rows - rows // 2, shards)]
        counts = np.bincount(deal(0, rows, shards), minlength=shards)
        assert counts.max() - counts.min() <= 1
        order, sizes = grouped(dealt, shards)
        assert sorted(order.tolist()) == list(range(rows))
        assert (np.diff(dealt[order]) >= 0).all()
        assert sizes.sum() == rows


@given(st.integers(1, 17), st.integers(1, 20))
def test_ranking_gives_every_shard_its_part_of_the_hottest(shards: int, rounds: int) -> None:
    dealt = serpentine(0, 40 * shards, shards)
    hottest = np.bincount(dealt[: rounds * shards], minlength=shards)
    assert (hottest == rounds).all()
    scores = np.arange(40 * shards, 0, -1)
    sums = np.bincount(dealt, weights=scores)
    assert sums.max() == sums.min()  # an even number of rounds: back and forth make up for each other


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1000)), min_size=1, max_size=20).filter(
        lambda found: sum(rows for rows, _ in found) > 0
    ),
    st.integers(1, 9),
)
def test_blocks_keep_the_order_and_are_of_equal_bytes(stretches: list[tuple[int, int]], count: int) -> None:
    rows, each = [one[0] for one in stretches], [one[1] for one in stretches]
    nbytes = [number * size for number, size in zip(rows, each, strict=True)]
    edges = [0, *blocks(rows, nbytes, count), sum(rows)]
    assert edges == sorted(edges)
    sizes = np.repeat(each, rows)
    mean = sum(nbytes) / count
    assert all(sizes[low:high].sum() <= mean + max(each) + 1e-6 for low, high in pairwise(edges))


@pytest.mark.parametrize(
    ("words", "said"), [("keys:user", "did you mean 'key'"), ("file:user", "looks at no column"), ("", "known: ")]
)
def test_an_unknown_partition_is_answered_with_what_is_known(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Partition.parse(words)
