"""How well a plan mixes the samples. Pure."""

from __future__ import annotations

from shoal.core.order import Mixing
from shoal.data.shards.blocks import Blocks
from shoal.data.shards.plan import LanePlan


def mixing(blocks: Blocks, plan: LanePlan) -> Mixing:
    """From how many different blocks a batch draws, over how many it would if all samples were shuffled at once.

    Neighbours in the raw data lie in one block: a batch that draws from few blocks is less of a random sample.
    """
    count = len(blocks.rows)
    mean_rows = plan.samples / max(1, count)
    drawn = 0.0
    for lane in range(plan.lanes):
        rows = min(plan.window_rows, plan.length(lane))
        drawn += expected_blocks(max(1.0, rows / mean_rows), plan.width(lane))
    best = expected_blocks(float(count), plan.global_batch)
    quality = min(1.0, drawn / best)
    at_once = min(float(count), max(float(plan.lanes), plan.lanes * plan.window_rows / mean_rows))
    words = (
        f"{quality:.2f} of a full shuffle: a batch of {plan.global_batch} draws from about {min(drawn, best):.0f} of "
        f"{count} blocks, a full shuffle from {best:.0f} ({plan.lanes} lanes, {at_once:.0f} blocks mixed at a time)"
    )
    return Mixing(round(quality, 4), words)


def expected_blocks(blocks: float, draws: int) -> float:
    """How many of equal blocks a number of draws hits, on average."""
    if blocks <= 1.0:
        return 1.0
    return float(blocks * (1.0 - (1.0 - 1.0 / blocks) ** draws))
