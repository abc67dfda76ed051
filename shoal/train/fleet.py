"""The servers of a run: how many there are, and how a worker gets to them."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.core.config import Config
from shoal.core.errors import ConfigError
from shoal.launch.servers import wish
from shoal.launch.session import Session
from shoal.strategies.base import Strategy

if TYPE_CHECKING:
    from shoal.store.access import FleetAccess

_READY_S = 120.0  # to import torch, from a cold disk if need be


def servers_of(config: Config, strategy: Strategy[Any]) -> int:
    """How many servers a run has: as stated, at least one where the strategy needs them, else none."""
    return max(1, config.servers) if strategy.needs.servers else 0


def idle_servers(config: Config, strategy: Strategy[Any]) -> str | None:
    """What to tell a user who has asked for servers that nobody would use."""
    if not config.servers or strategy.needs.servers:
        return None
    return (
        f"servers={config.servers} has no effect: strategy {strategy.name} has no use for servers, and none is started"
    )


def reach_fleet(
    session: Session,
    config: Config,
    strategy: Strategy[Any],
    fit: int,
    closing: contextlib.ExitStack,
    on_lost: Callable[[str], None] = lambda words: None,
) -> FleetAccess | None:
    """Ask for the servers of `fit`, where the strategy needs some, and return how to get to them. Whoever has made this
    session may have started them; else its launcher does, or, for a worker on its own, this process, until `closing`:
    `on_lost` is told then which one was lost, and why, in a thread of theirs. A launcher tells that itself.
    """
    servers = servers_of(config, strategy)
    if servers == 0:
        return None
    if session.fleet is not None:
        return session.fleet
    server, hang_s = config.server, config.elastic.hang_s
    session.report(wish(fit, servers, server.replicas, config.comm.encrypt, server.plugins, hang_s))
    access = session.attendance.fleet(fit)
    if access is not None:
        return access
    if session.world.size > 1:
        raise ConfigError(f"strategy {strategy.name} needs servers, which `shoal train` or fit(workers=N) start")
    return _own_fleet(config, servers, closing, on_lost)


def _own_fleet(
    config: Config, servers: int, closing: contextlib.ExitStack, on_lost: Callable[[str], None]
) -> FleetAccess:
    from shoal.launch.serving import PLUGINS
    from shoal.store.access import FleetAccess
    from shoal.store.fleet import Fleet
    from shoal.store.keeper import FleetTerms

    directory = tempfile.mkdtemp(prefix="shoal-servers-")
    closing.callback(shutil.rmtree, directory, ignore_errors=True)
    replicas, hang_s = config.server.replicas, config.elastic.hang_s
    terms = FleetTerms(servers, replicas, encrypt=config.comm.encrypt, hang_s=hang_s)
    plugins = (*PLUGINS, *config.server.plugins)
    fleet = closing.enter_context(Fleet(directory, terms, plugins=plugins, search_path=tuple(sys.path), lost=on_lost))
    return FleetAccess(lambda: fleet.wait_ready(_READY_S), fleet.keys.client())
