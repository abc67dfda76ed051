"""Slices of prepared data sets, and sums of them: the right samples, read ahead, and nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_cases import damage, numbered_data_set, requests, settings

import shoal
from shoal.core.cursor import Batches
from shoal.core.errors import ConfigError
from shoal.data.loader import Loader
from shoal.data.parts import JoinedSource, joined, part_of
from shoal.data.shards import ShardSource
from shoal.data.source import Source

pytestmark = pytest.mark.unit
SAMPLES = 400
SMALL = 0.004


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parts")
    numbered_data_set(made, SAMPLES, rows=10, per_shard=7)
    return made


def whole(folder: Path, memory_mib: float = SMALL) -> ShardSource:
    return ShardSource(folder, settings=settings(memory_mib=memory_mib))


def streamed(source: Source, shuffle: bool = True) -> list[int]:
    """What the samples of an epoch say of themselves."""
    loads = Loader(source, 3, shuffle=shuffle, batches=Batches(len(source), 32, 4))
    seen = []
    for loaded in loads.stream(requests(len(source), 32, 0)):
        seen += loaded.batch[1].tolist()
    return seen


@given(st.data())
def test_a_part_of_a_part_has_its_samples_and_no_others(folder: Path, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, SAMPLES - 2))
    stop = data.draw(st.integers(start + 1, SAMPLES))
    source, numbers = part_of(whole(folder), range(start, stop)), np.arange(start, stop)
    if len(numbers) > 1 and data.draw(st.booleans()):
        low = data.draw(st.integers(0, len(numbers) - 2))
        high = data.draw(st.integers(low + 1, len(numbers)))
        source, numbers = part_of(source, range(low, high)), numbers[low:high]
    assert isinstance(source, ShardSource)
    asked = np.array([0, len(numbers) - 1, len(numbers) // 2])
    assert source.fetch(asked, 0, 0)[1].tolist() == numbers[asked].tolist()
    seen = streamed(source)
    assert sorted(seen) == numbers.tolist()
    assert streamed(source, shuffle=False) == numbers.tolist()
    assert streamed(pickle.loads(pickle.dumps(source))) == seen


def test_a_tenth_is_read_as_a_tenth(folder: Path) -> None:
    source, all_of_it = part_of(whole(folder), range(5, 45)), whole(folder)
    streamed(source)
    streamed(all_of_it)
    assert 0 < source.bytes_read < 0.2 * all_of_it.bytes_read, "five of 40 row groups"


def test_parts_differ_in_their_marks(folder: Path) -> None:
    source = whole(folder)
    parts = [source, source.part(0, 100), source.part(100, 200), joined([source.part(0, 50), source.part(50, 100)])]
    assert len({part.mark for part in parts}) == len(parts)


def test_a_sum_of_parts_is_one_data_set(folder: Path, tmp_path: Path) -> None:
    numbered_data_set(tmp_path / "other", 60, rows=25, per_shard=2)
    source = whole(folder)
    both = joined([source.part(0, 15), source.part(333, 400), whole(tmp_path / "other")])
    assert isinstance(both, ShardSource)
    expected = [*range(15), *range(333, 400), *range(60)]
    assert streamed(both, shuffle=False) == expected
    assert sorted(streamed(both)) == sorted(expected)
    assert both.fetch(np.array([14, 15, 82]), 0, 0)[1].tolist() == [14, 333, 0]


def test_samples_of_different_kinds_are_not_taken_for_one_data_set(folder: Path) -> None:
    one = ShardSource(folder, columns=["y"], settings=settings())
    with pytest.raises(ConfigError, match="cannot be in one batch"):
        joined([one, ShardSource(folder, columns=[("x",)], settings=settings())]).fetch(np.array([0, SAMPLES]), 0, 0)
    assert isinstance(joined([one, ShardSource(folder, columns=["x"], settings=settings())]), JoinedSource)


def test_slices_that_are_opened_by_name_are_parts(folder: Path) -> None:
    ends = shoal.data.open(folder, "[:10%]+[-10%:]")
    assert isinstance(ends, ShardSource)
    assert sorted(streamed(ends)) == [*range(40), *range(360, 400)]


def test_damage_elsewhere_does_not_matter_and_within_is_left_out_exactly(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path, 100, rows=10, per_shard=5)
    first, _ = damage(tmp_path, manifest, 1, 2)  # rows 70 to 79
    assert first == 70
    assert sorted(streamed(whole(tmp_path).part(0, 70))) == list(range(70))
    skipping = ShardSource(tmp_path, settings=settings(memory_mib=SMALL, corrupt="skip")).part(65, 85)
    loads = Loader(skipping, 3, batches=Batches(len(skipping), 8, 4))
    seen = [n for one in loads.stream(requests(20, 8, 0)) if len(one.indices) for n in one.batch[1].tolist()]
    assert sorted(seen) == [*range(65, 70), *range(80, 85)]
    (complaint,) = skipping.complaints()
    assert "10 samples are left out" in complaint
