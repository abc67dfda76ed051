"""From a name to a strategy."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from shoal.core.config import Config, HybridSettings, ServerSettings
from shoal.core.consistency import parse
from shoal.core.errors import ConfigError, nearest
from shoal.strategies.base import Strategy
from shoal.strategies.names import STRATEGIES


def import_plugins(modules: Sequence[str]) -> None:
    """Import the modules that `server.plugins` names, which register consistencies and placements of the user's own."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"server.plugins names {module!r}, which cannot be imported ({error}): give the name of a module that "
                "lies beside the script or is installed"
            ) from error


def most_workers(config: Config) -> int:
    """The most workers that a run may come to have."""
    return max(config.workers, config.elastic.max_workers or 1)


def choose_strategy(
    name: str, workers: int, hybrid: HybridSettings | None = None, server: ServerSettings | None = None
) -> Strategy[Any]:
    """The strategy called `name`; ``auto`` is `single` for one worker and `allreduce` for more. `hybrid` says of what
    a hybrid is composed, `server` how far workers, or teams, of a parameter server may be apart."""
    if name == "auto":
        name = "single" if workers == 1 else "allreduce"
    if name not in STRATEGIES:
        raise ConfigError(f"unknown strategy {name!r}: {nearest(name, [*STRATEGIES, 'auto'])}")
    if name == "hybrid":
        from shoal.strategies.hybrid import compose

        return compose(hybrid if hybrid is not None else HybridSettings(), server)
    if name == "parameter-server":
        from shoal.strategies.parameter_server import ParameterServer

        return ParameterServer(parse(server.consistency if server is not None else "bsp"))
    module, _, attribute = STRATEGIES[name].partition(":")
    strategy = getattr(importlib.import_module(module), attribute)()
    assert isinstance(strategy, Strategy)
    return strategy
