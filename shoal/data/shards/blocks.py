"""The blocks of a prepared data set: its row groups, numbered through all shards in the order of the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shoal.core.order import Indices
from shoal.data.manifest import Manifest, RowGroup, Shard

_BITS = 8


@dataclass(frozen=True)
class Blocks:
    """How samples lie in blocks. Sample `n` is row `n` of the data set in the order of the manifest; block `b` holds
    samples ``starts[b] .. starts[b + 1] - 1``. `row_bytes` is about what a sample takes in memory before its images
    are decoded. All of it
    follows from the data set."""

    rows: tuple[int, ...]
    row_bytes: float

    @cached_property
    def starts(self) -> Indices:
        return np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)

    @property
    def samples(self) -> int:
        return int(self.starts[-1])

    @property
    def nbytes(self) -> int:
        """About what all samples take in memory."""
        return int(self.samples * self.row_bytes)

    def of(self, samples: Indices) -> Indices:
        """The block of each of these samples."""
        found: Indices = np.searchsorted(self.starts, samples, side="right") - 1
        return found


def blocks_of(manifest: Manifest, unpacked_bytes: int) -> tuple[Blocks, list[tuple[Shard, int, RowGroup]]]:
    """The blocks that hold any rows, and for each its shard, its number there, and where its bytes are.
    `unpacked_bytes`: what all of them take when they are no longer compressed, as the footers of the shards say."""
    found = [
        (shard, number, group)
        for shard in manifest.shards
        for number, group in enumerate(shard.row_groups)
        if group.rows > 0
    ]
    width = max(unpacked_bytes / max(1, manifest.rows), sum(fixed_width(field.type) for field in manifest.schema))
    return Blocks(tuple(group.rows for _, _, group in found), max(1.0, width)), found


def fixed_width(kind: Any) -> float:
    """Bytes that a value of this Arrow type takes in memory, where all take the same; else 0."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        return float(kind.list_size * fixed_width(kind.value_type))
    try:
        return float(kind.bit_width) / _BITS
    except ValueError:
        return 0.0
