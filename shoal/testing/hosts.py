"""Network namespaces as hosts, for tests and for `scripts/hosts`: those that a drill makes, see `shoal.drill.hosts`."""

from __future__ import annotations

from shoal.drill.hosts import Host, Hosts, HostsUnavailable, main, remove, standing, sweep, why_not

__all__ = ["Host", "Hosts", "HostsUnavailable", "main", "remove", "standing", "sweep", "why_not"]
