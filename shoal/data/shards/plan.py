"""How a run reads a data set that lies in blocks: how many lanes, and how large their windows. Pure.

Grain j of every global batch takes its samples from the same lane, so a worker, which computes neighbouring grains,
needs few lanes, and nobody else needs them. Nothing here depends on the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.cursor import Batches
from shoal.data.shards.blocks import Blocks

_FEWEST_BLOCKS = 4  # to a lane: its first and its last may be shared with another
_ROW_ORDER_BATCH = 1024  # where there is one lane, batches may be cut anywhere
_MIXED_ROWS = 1 << 21  # at most, however small they are: all of them are read before the first batch of a resume
_MIXED = 0.5  # of the memory holds what is being drawn from; the rest is for what is read ahead and handed out


@dataclass(frozen=True)
class LanePlan:
    """Lane k provides the samples at offsets ``borders[k] .. borders[k + 1] - 1`` of every global batch. A window of a
    lane has about `window_rows` samples."""

    samples: int
    global_batch: int
    borders: tuple[int, ...]
    window_rows: int

    @property
    def lanes(self) -> int:
        return len(self.borders) - 1

    def width(self, lane: int) -> int:
        """Samples of a full global batch that come from `lane`."""
        return self.borders[lane + 1] - self.borders[lane]

    def length(self, lane: int) -> int:
        """Samples of an epoch that come from `lane`; the last batch may be short."""
        full, rest = divmod(self.samples, self.global_batch)
        return full * self.width(lane) + min(max(rest - self.borders[lane], 0), self.width(lane))


def plan_lanes(blocks: Blocks, batches: Batches | None, memory_bytes: int, shuffle: bool = True) -> LanePlan:
    """As many lanes as a global batch has grains; fewer where there are few blocks, or where a window of one block for
    each lane would take too much memory. One lane where the order of the rows is kept, or batches are not known."""
    room = min(memory_bytes * _MIXED, _MIXED_ROWS * blocks.row_bytes)
    if batches is None or not shuffle:
        size = max(1, min(blocks.samples, _ROW_ORDER_BATCH))
        return LanePlan(blocks.samples, size, (0, size), _rows(room / (1 if shuffle else 8), blocks))
    grains = -(-batches.global_batch // batches.grain)
    largest = max(blocks.rows) * blocks.row_bytes
    lanes = max(1, min(grains, len(blocks.rows) // _FEWEST_BLOCKS, int(room // largest)))
    borders = tuple(min(batches.global_batch, batches.grain * (grains * k // lanes)) for k in range(lanes))
    return LanePlan(blocks.samples, batches.global_batch, (*borders, batches.global_batch), _rows(room / lanes, blocks))


def _rows(room: float, blocks: Blocks) -> int:
    return max(1, int(room / blocks.row_bytes))
