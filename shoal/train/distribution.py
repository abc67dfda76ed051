"""How a run is distributed, in words: what `auto` became, teams, servers, consistency, codec."""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import Any

from shoal.core.config import Config
from shoal.core.teams import teams
from shoal.core.world import Member, View
from shoal.strategies.base import Strategy
from shoal.strategies.names import AUTO
from shoal.train.fleet import servers_of

Rows = tuple[tuple[str, str], ...]
_WITH_SERVERS = ("parameter-server", "async")  # between teams


def distribution(config: Config, strategy: Strategy[Any], view: View) -> Rows:
    """Pairs of a name and a value, for header and dry run: what holds in `view`."""
    rows = [("strategy", _strategy(config, strategy, view)), ("workers", _crew(view))]
    if strategy.name == "hybrid":
        rows.append(("teams", _teams(config, view)))
    if strategy.needs.servers:
        copies = ", two copies each" if config.server.replicas == 2 else ""
        rows.append(("servers", f"{servers_of(config, strategy)}{copies}"))
        rows.append(("consistency", _consistency(config, strategy)))
    if config.comm.codec != "none":
        rows.append(("codec", _codec(config, strategy, view)))
    return tuple(rows)


def planned_view(workers: int) -> View:
    """The view of a run that is not started: all its workers on this host."""
    host = socket.gethostname()
    members = (Member("worker", rank, host, os.getpid(), f"{rank}", "here", rank) for rank in range(workers))
    return View(0, tuple(members))


def _strategy(config: Config, strategy: Strategy[Any], view: View) -> str:
    if strategy.name == "hybrid":
        return f"hybrid: {config.hybrid.inner} within a team, {config.hybrid.outer} between teams"
    if config.strategy != AUTO:
        return strategy.name
    if strategy.name == "single":
        return "single (auto: one worker)"
    why = "more than one worker" if view.size > 1 else "more may come"
    return f"{strategy.name} (auto: {why})"


def _crew(view: View) -> str:
    return f"{view.size} on {view.hosts} host{'s' if view.hosts > 1 else ''}"


def _teams(config: Config, view: View) -> str:
    pair, rule = config.hybrid, config.hybrid.team
    split = teams(view, rule)
    stated = f"hybrid.team={rule}"
    if len(split) > 1:
        sizes = Counter(map(len, split))
        each = ", ".join(f"{count} of {size} worker{'s' if size > 1 else ''}" for size, count in sizes.items())
        return f"{each} ({stated})"
    alone = "all workers are on one host" if rule == "host" else f"there are {view.size} workers"
    if pair.outer in _WITH_SERVERS:
        return f"1 ({stated}): {alone}, so its sums are all that the servers get"
    return f"1 ({stated}): {alone}, so hybrid is its inner strategy here, {pair.inner}, until there are more teams"


def _consistency(config: Config, strategy: Strategy[Any]) -> str:
    asynchronous = "async" in (strategy.name, config.hybrid.outer if strategy.name == "hybrid" else "")
    if not asynchronous:
        return config.server.consistency
    return "asp, old updates count less" if config.asynchronous.damping else "asp"


def _codec(config: Config, strategy: Strategy[Any], view: View) -> str:
    codec = config.comm.codec
    if view.size == 1 and not strategy.needs.servers:
        return f"{codec}, unused: one worker sends nothing"
    return "auto: measured in the first steps, then chosen" if codec == AUTO else codec
