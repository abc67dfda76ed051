"""Raw files, and the rows of what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.data.manifest import Manifest
from shoal.data.places import Place
from shoal.data.preparing.sizes import Sizes

SMALL = Sizes(block_bytes=32 << 10, run_bytes=32 << 10, piece_bytes=24 << 10)  # many tasks of little data
ROWS = 12_000
PART = ROWS // 3  # rows of each file


def table(rows: int = ROWS, seed: int = 3) -> pa.Table:
    """`id` tells a row from all others; `user` is as uneven as users are."""
    draw = np.random.default_rng(seed)
    users = draw.zipf(1.2, rows) % 10**6
    return pa.table(
        {
            "id": np.arange(rows),
            "user": users,
            "name": [f"user-{user}" for user in users.tolist()],
            "score": draw.normal(10, 3, rows).round(6),
        }
    )


def shards(folder: Path) -> list[pa.Table]:
    """The rows of each shard, as another tool would read them."""
    manifest = Manifest.read(Place.of(folder))
    return [pq.read_table(folder / shard.file) for shard in manifest.shards]


def rows(folder: Path, by: str = "id") -> Any:
    """All rows, sorted."""
    return pa.concat_tables(shards(folder)).sort_by(by)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()
