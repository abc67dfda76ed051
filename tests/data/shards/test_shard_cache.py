"""Blocks of remote data sets on the local disk: fetched once, within a size, never believed without a look."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from faulty_server import serving
from shard_cases import assert_numbered, numbered_data_set, requests, settings

from shoal.core.cursor import Batches
from shoal.data.loader import Loader
from shoal.data.shards import ShardSource
from shoal.data.shards.cache import BlockCache

pytestmark = pytest.mark.unit
SAMPLES = 300


def epoch(url: str, cache: Path, cache_mib: float = 10.0) -> int:
    """Read an epoch as a new process would; returns the bytes that were fetched."""
    data = ShardSource(url, settings=settings(memory_mib=0.004, cache_mib=cache_mib, cache_dir=str(cache)))
    seen: list[int] = []
    for loaded in Loader(data, 3, batches=Batches(SAMPLES, 30, 2)).stream(requests(SAMPLES, 30, 0)):
        assert_numbered(loaded)
        seen += loaded.indices.tolist()
    assert sorted(seen) == list(range(SAMPLES))
    return data.bytes_read


def test_blocks_are_fetched_once_and_damaged_copies_again(tmp_path: Path) -> None:
    manifest = numbered_data_set(tmp_path / "data", SAMPLES, rows=10, per_shard=30)
    stored = sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)
    cache = tmp_path / "cache"
    with serving(tmp_path / "data") as server:
        assert epoch(server.url, cache) == stored
        assert epoch(server.url, cache) == 0
        kept = sorted(path for path in cache.iterdir() if not path.name.startswith("."))
        assert len(kept) == 30
        kept[0].write_bytes(b"x" * kept[0].stat().st_size)
        kept[1].write_bytes(b"")
        assert 0 < epoch(server.url, cache) < 0.1 * stored
        assert epoch(server.url, cache) == 0


def test_without_a_cache_nothing_is_kept(tmp_path: Path) -> None:
    numbered_data_set(tmp_path / "data", SAMPLES, rows=10, per_shard=30)
    with serving(tmp_path / "data") as server:
        assert epoch(server.url, tmp_path / "cache", cache_mib=0.0) > 0
    assert not (tmp_path / "cache").exists()


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 1000)
    for number in range(9):
        cache.put(f"{number}", b"x" * 100)
        os.utime(tmp_path / f"{number}", (number, number))
    assert cache.get("0") is not None  # used now
    cache.put("new", b"x" * 200)
    assert cache.get("new") is not None
    assert cache.get("0") is not None
    assert cache.get("1") is None
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


def test_what_is_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 1000)
    cache.put("large", b"x" * 1001)
    assert cache.get("large") is None


def test_several_writers_keep_to_the_limit_together(tmp_path: Path) -> None:
    def write(name: str) -> None:
        cache = BlockCache(tmp_path, 64_000)
        for number in range(100):
            cache.put(f"{name}-{number}", bytes(4000))
            found = cache.get(f"{name}-{number}")
            assert found is None or found == bytes(4000)  # another may have made room at its cost, but it is whole

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 64_000 * (1 + 4 / 16)


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_cache(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 1000)
    (tmp_path / "taken").mkdir()  # a name under which nothing can be put
    cache.put("taken", b"x")
    assert cache.get("taken") is None
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".taken")] == []
