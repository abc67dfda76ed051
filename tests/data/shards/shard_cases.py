"""Small prepared data sets for tests: row n holds the number n in every column."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.config import LoaderSettings
from shoal.data.manifest import Manifest
from shoal.data.places import Place
from shoal.data.request import Loaded, Request
from shoal.data.shard_file import write_shard

SCHEMA = pa.schema([("x", pa.list_(pa.float32(), 4)), ("y", pa.int64())])


def numbered(numbers: Any) -> pa.Table:
    numbers = np.asarray(numbers)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 4).astype(np.float32)), 4)
    return pa.table({"x": rows, "y": pa.array(numbers, pa.int64())}, schema=SCHEMA)


def write_data_set(folder: str | Path, shards: Sequence[Sequence[pa.Table]], schema: pa.Schema = SCHEMA) -> Manifest:
    """Each of `shards` is a list of tables, which become its row groups."""
    place = Place.of(folder)
    written = tuple(
        write_shard(place / f"part-{number:05d}.parquet", tables, schema) for number, tables in enumerate(shards)
    )
    packed, fields = Manifest.pack_schema(schema)
    manifest = Manifest(
        rows=sum(shard.rows for shard in written),
        bytes=sum(shard.bytes for shard in written),
        fields=fields,
        arrow_schema=packed,
        shards=written,
    )
    manifest.write(place)
    return manifest


def numbered_data_set(folder: str | Path, samples: int, rows: int = 20, per_shard: int = 5) -> Manifest:
    borders = [*range(0, samples, rows), samples]
    groups = [numbered(np.arange(a, b)) for a, b in itertools.pairwise(borders)]
    return write_data_set(folder, [groups[at : at + per_shard] for at in range(0, len(groups), per_shard)])


def settings(**given: Any) -> LoaderSettings:
    return LoaderSettings(**{"cache_mib": 0.0, **given})


def requests(samples: int, size: int, *epochs: int) -> list[Request]:
    return [Request(epoch, at, min(at + size, samples)) for epoch in epochs for at in range(0, samples, size)]


def assert_numbered(loaded: Loaded) -> None:
    """The batch holds the samples that it says."""
    assert loaded.batch[1].tolist() == loaded.indices.tolist()
    assert loaded.batch[0][:, 3].long().tolist() == loaded.indices.tolist()


def damage(folder: Path, manifest: Manifest, shard: int, group: int) -> tuple[int, int]:
    """Change a byte in the middle of a row group; returns its rows ``[first, last)``."""
    one = manifest.shards[shard]
    where = one.row_groups[group]
    path = folder / one.file
    data = bytearray(path.read_bytes())
    data[(where.start + where.stop) // 2] ^= 0xFF
    path.write_bytes(data)
    first = sum(s.rows for s in manifest.shards[:shard]) + sum(g.rows for g in one.row_groups[:group])
    return first, first + where.rows
