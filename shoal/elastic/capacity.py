"""A first guess of how quick workers are, before anything was measured: from cores and from what else runs there.

The guess holds for the first few steps. It knows nothing of how quick a core is: that, and all else, is measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import fsum
from pathlib import Path
from typing import Any

_LEAST_CORES = 0.01


@dataclass(frozen=True)
class Capacity:
    """What a worker finds where it is. `cpus` are those that its process may run on, `quota` is how many of them its
    control group may use at a time (None: all), `load` how many threads wanted one of the host's `host_cpus` in the
    last minute, its own run's among them."""

    cpus: tuple[int, ...]
    quota: float | None
    load: float
    host_cpus: int

    @property
    def cores(self) -> float:
        return max(_LEAST_CORES, min(float(len(self.cpus)), self.quota if self.quota is not None else float("inf")))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Capacity:
        return cls(tuple(data["cpus"]), data["quota"], float(data["load"]), int(data["host_cpus"]))


def measure(root: Path = Path("/")) -> Capacity:
    """Look around. Takes well below a millisecond; what the system does not tell counts as no limit."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    try:
        load = float((root / "proc/loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        load = 0.0
    return Capacity(cpus, cgroup_quota(root), load, os.cpu_count() or len(cpus))


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """How many CPUs the control groups of this process grant it: the least of its own and those above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    mount = root / "sys/fs/cgroup"
    found: list[float] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        within = Path(path.lstrip("/"))
        for level in (within, *within.parents):
            if not controllers:  # version 2
                found += _quota_of(mount / level / "cpu.max")
            elif "cpu" in controllers.split(","):
                for base in (mount / "cpu", mount / controllers):
                    found += _quota_of(base / level / "cpu.cfs_quota_us", base / level / "cpu.cfs_period_us")
    return min(found, default=None)


def _quota_of(*files: Path) -> list[float]:
    """A quota and its period, from one file or two. Empty where there is none."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return [int(quota) / int(period)] if int(quota) > 0 and int(period) > 0 else []
    except (OSError, ValueError):  # "max" is no number
        return []


def guess_speeds(
    capacities: Sequence[Capacity], hosts: Sequence[str], threads: int, at_work: Sequence[bool]
) -> tuple[float, ...]:
    """How quick each worker will be, relative to one whose `threads` all have a core of their own. Pure.

    Workers on one host with the same cores share them, with each other and with whatever else runs there; each thread
    gets its fair part. `at_work`: which of them have computed until now, so that the load of their host is theirs.
    """
    places = [(host, one.cpus, one.quota) for host, one in zip(hosts, capacities, strict=True)]
    speeds = []
    for place in places:
        there = [rank for rank, other in enumerate(places) if other == place]
        working = sum(at_work[rank] for rank in range(len(hosts)) if hosts[rank] == place[0])
        some = capacities[there[0]]
        load = fsum(capacities[rank].load for rank in there) / len(there)
        others = max(0.0, load - working * threads) * len(some.cpus) / some.host_cpus
        wanted = others + len(there) * threads
        speeds.append(min(1.0, some.cores / wanted))
    return tuple(speeds)
