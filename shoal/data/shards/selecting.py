"""Parts of prepared data sets, and several in a row, as data sets: only what lies in them is read. Pure."""

from __future__ import annotations

from dataclasses import replace

from shoal.data.shards.blocks import Blocks
from shoal.data.shards.opening import DataSet


def cut(data: DataSet, start: int, stop: int) -> DataSet:
    """Samples ``[start, stop)``. The blocks at its ends may lose some of their rows."""
    rows, stored = [], []
    starts = data.blocks.starts.tolist()
    for block, first, last in zip(data.stored, starts, starts[1:], strict=False):
        low, high = max(start, first) - first, min(stop, last) - first
        if low < high:
            begin = block.within[0] if block.within is not None else 0
            whole = high - low == last - first
            rows.append(high - low)
            stored.append(block if whole else replace(block, within=(begin + low, begin + high)))
    return replace(
        data, mark=f"{data.mark}[{start}:{stop}]", blocks=Blocks(tuple(rows), data.blocks.row_bytes),
        stored=tuple(stored),
    )  # fmt: skip


def chained(first: DataSet, second: DataSet) -> DataSet:
    """The samples of both, one after the other. Their schemas must be equal."""
    one, other = first.blocks, second.blocks
    row_bytes = (one.nbytes + other.nbytes) / (one.samples + other.samples)
    return replace(
        first,
        mark=f"{first.mark}+{second.mark}",
        blocks=Blocks((*one.rows, *other.rows), row_bytes),
        stored=(*first.stored, *second.stored),
        bytes_looked_at=first.bytes_looked_at + second.bytes_looked_at,
    )
