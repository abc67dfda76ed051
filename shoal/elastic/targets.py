"""How many workers each agent should run, and which have to leave: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """What counts of an agent here."""

    agent: str
    home: bool
    capacity: int
    leaving: bool


def targets(hosts: Sequence[Host], wanted: int | None, most: int | None) -> dict[str, int | None]:
    """How many workers each agent should run so that there are `wanted` in all, never more than `most`. `hosts` by
    arrival; home is filled first, then the others; what is left over goes to home again. None: as it likes."""
    if wanted is None:
        return {host.agent: 0 if host.leaving else None for host in hosts}
    left = min(wanted, most) if most is not None else wanted
    result: dict[str, int | None] = {host.agent: 0 for host in hosts}
    ready = sorted((host for host in hosts if not host.leaving), key=lambda host: not host.home)
    for host in ready:
        given = min(left, host.capacity)
        result[host.agent], left = given, left - given
    if ready and ready[0].home:
        result[ready[0].agent] = (result[ready[0].agent] or 0) + left
    return result


def leavers(target: int | None, running: Iterable[str], rank: Mapping[str, int]) -> set[str]:
    """Which of an agent's `running` workers (by arrival) should go, so that `target` remain: first those that are in no
    view, the last to arrive first, then those of the highest rank."""
    if target is None:
        return set()
    keep_first = sorted(running, key=lambda key: (key not in rank, rank.get(key, 0)))
    return set(keep_first[target:])
