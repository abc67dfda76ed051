"""shoal.data.open on prepared data sets: found by their manifest, with the same splits and slices as raw files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import shoal
from shoal.core.errors import ConfigError
from shoal.data.manifest import Manifest
from shoal.data.places import Place
from shoal.data.shard_file import write_shard
from shoal.data.shards.source import ShardSource

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, start in (("train", 0), ("test", 1000)):
        place, numbers = Place.of(tmp_path / split), np.arange(start, start + 100)
        table = pa.table({"x": numbers / 4, "label": numbers % 3})
        made = [write_shard(place / f"{half}.parquet", [table.slice(half * 50, 50)], table.schema) for half in (0, 1)]
        packed, fields = Manifest.pack_schema(table.schema)
        size = sum(shard.bytes for shard in made)
        Manifest(rows=100, bytes=size, fields=fields, arrow_schema=packed, shards=tuple(made)).write(place)
    return tmp_path


def test_a_folder_with_a_manifest_is_a_prepared_data_set(folder: Path) -> None:
    for source in (shoal.data.open(folder, "train"), shoal.data.open(folder / "train")):
        assert isinstance(source, ShardSource)
        assert source.fetch(np.array([99, 4]), 0, 0)[0].tolist() == [24.75, 1]


def test_splits_and_slices_are_those_of_raw_files(folder: Path) -> None:
    source = shoal.data.open(folder, "train[-10%:]+test[:1]", columns=["x"])
    assert len(source) == 11
    assert source.fetch(np.array([0, 10, 9]), 0, 0).tolist() == [22.5, 250, 24.75]
    part = shoal.data.open(folder / "train", "[50%:]")
    assert sorted(part.order(0, True).at(0, 0, 50).tolist()) == list(range(50))


def test_a_split_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="without splits: leave 'test' out"):
        shoal.data.open(folder / "train", "test")
    with pytest.raises(ConfigError, match="has the splits test, train: say which"):
        shoal.data.open(folder)
    with pytest.raises(ConfigError, match="no split 'valid'"):
        shoal.data.open(folder, "valid")
