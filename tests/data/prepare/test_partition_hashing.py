"""The hash of keys: golden values, because data sets on disk were divided by it."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.partition.hashing import hash_values

pytestmark = pytest.mark.unit


def test_hashes_are_the_same_for_ever() -> None:
    assert hash_values(pa.array([0, 1, -1, 2**62])).tolist() == GOLDEN_INTEGERS
    assert hash_values(pa.array(["", "a", "shoal", "twelve bytes", "é", "x" * 300])).tolist() == GOLDEN_TEXTS
    assert hash_values(pa.array([0.0, 1.5, float("nan"), None])).tolist() == GOLDEN_FLOATS


GOLDEN_INTEGERS = [6411031809496720090, 8404447377044629531, 12609571692950803144, 16655011467721829173]
GOLDEN_TEXTS = [
    1265094156158224713,
    17033100311932628528,
    13242360673906242142,
    16665278649483185826,
    2048358614185229510,
    1533152188014638354,
]
GOLDEN_FLOATS = [3827972528051253215, 14871929891682883637, 16522079525636599331, 5833679380957638813]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_a_number_has_one_hash_whatever_the_width_of_its_column(numbers: list[int]) -> None:
    wide = hash_values(pa.array(numbers, pa.int64()))
    assert (hash_values(pa.array(numbers, pa.int32())) == wide).all()


def test_a_text_has_one_hash_however_it_is_held() -> None:
    texts = ["a", None, "", "longer than a word", "a"]
    plain = hash_values(pa.array(texts))
    assert (hash_values(pa.array(texts, pa.large_string())) == plain).all()
    assert (hash_values(pa.array(texts).dictionary_encode()) == plain).all()
    assert (hash_values(pa.chunked_array([texts[:2], texts[2:]])) == plain).all()
    assert (hash_values(pa.array(["cut off", *texts, "too"]).slice(1, 5)) == plain).all()
    assert plain[0] == plain[4]
    assert len(set(plain.tolist())) == 4


@given(st.lists(st.one_of(st.none(), st.binary(max_size=300)), min_size=1, max_size=30))
def test_the_hash_of_a_value_does_not_depend_on_its_neighbours(values: list[bytes | None]) -> None:
    together = hash_values(pa.array(values, pa.binary()))
    alone = [int(hash_values(pa.array([value], pa.binary()))[0]) for value in values]
    assert together.tolist() == alone


def test_zero_has_no_sign_and_there_is_one_nan() -> None:
    odd = np.array([0x7FF8000000000001, 0x7FF8000000000000], np.uint64).view(np.float64)
    first, second = hash_values(pa.array(odd)).tolist()
    assert first == second
    assert hash_values(pa.array([0.0]))[0] == hash_values(pa.array([-0.0]))[0]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False, None]),
        pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2), None]),
        pa.array([dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2), None]),
        pa.array([[1, 2], [3], None]),
        pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, None]),
        pa.array([1, 2, None], pa.decimal128(10, 2)),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_every_type_have_hashes_that_differ(values: pa.Array) -> None:
    assert len(set(hash_values(values).tolist())) == 3


def test_keys_spread_evenly_over_shards() -> None:
    for keys in (pa.array(np.arange(100_000)), pa.array([f"user-{number}" for number in range(100_000)])):
        counts = np.bincount((hash_values(keys) % np.uint64(16)).astype(np.int64))
        assert counts.max() < 1.05 * counts.mean()
