"""Workers that would have nothing to do: said before the first step, with what helps."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.cursor import Batches, Cursor
from shoal.strategies.base import Strategy
from shoal.train.cutting import Cutting


def idle_workers(
    strategy: Strategy[object], batches: Batches, cutting: Cutting, weights: Sequence[float]
) -> str | None:
    """Who has no sample in a full batch that is divided by `weights`, and which setting helps; None if all have some.
    Who was given no share on purpose does not count, nor who takes batches as it gets on."""
    if strategy.needs.leases or not batches.samples:
        return None
    first = batches.at(Cursor())
    wanted = [rank for rank, weight in enumerate(weights) if weight > 0]
    idle = [rank for rank in wanted if not first.share(rank, weights)]
    if not idle:
        return None
    grains = len(first.grains)
    count = f"{len(idle)} of {len(weights)} workers have no sample in a full batch: it has {grains} "
    count += f"grain{'s' if grains > 1 else ''} of {batches.grain} samples ({cutting.why})"
    fitting = first.samples // len(wanted)
    if fitting == 0:
        return f"{count}. A batch of {first.samples} samples is too small for {len(wanted)} workers: a larger one helps"
    effect = ", of which batch normalisation then sees no more" if cutting.normed else ""
    return f"{count}. --set grain={fitting} gives all of them some{effect}"
