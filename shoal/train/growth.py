"""How workers agree on what the next epoch of a growing source trains on: the first one looks, all take its word."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.comm.group import Group
from shoal.core.arrivals import Instalment
from shoal.core.errors import ShoalError
from shoal.data.following import LOOK_S, FollowingSource, Watch

Wishes = Callable[[], tuple[bool, bool]]


@dataclass(frozen=True)
class Agreed:
    """What the waiting has come to: an instalment, or that some worker wishes to stop, or to change the view."""

    found: Instalment | None
    stop: bool
    change: bool


def agree(
    source: FollowingSource, last: Instalment, epoch: int, group: Group, wishes: Wishes, tick: Callable[[], None]
) -> Agreed:
    """Wait until there is something for `epoch`, which comes after `last`, or until it is over. Collective.

    Nobody waits for longer than a look of the first worker without hearing from it.
    """
    watch = Watch(source)
    while True:
        stop, change = wishes()
        found = watch.look(last, epoch) if group.rank == 0 else None
        if group.rank == 0 and found is None and not stop and not change:
            time.sleep(LOOK_S)
        tick()
        mine = [found.to_json() if found is not None else None, stop, change]
        said = [json.loads(word) for word in group.gather_bytes(json.dumps(mine).encode(), "awaiting files")]
        agreed = Agreed(
            Instalment.from_json(said[0][0]) if said[0][0] is not None else None,
            any(stop for _, stop, _ in said),
            any(change for _, _, change in said),
        )
        if agreed.found is not None or agreed.stop or agreed.change:
            return agreed


def count(source: FollowingSource, instalment: Instalment, group: Group) -> int:
    """The number of samples in `instalment`, which every worker reads for itself. Collective."""
    words = group.gather_bytes(str(source.count(instalment)).encode(), "comparing what has come")
    counts = sorted({int(word) for word in words})
    if len(counts) > 1:
        raise ShoalError(
            f"the workers find {', '.join(map(str, counts))} samples in the files that have come to {source.place}: "
            "all must read the same"
        )
    return counts[0]
