"""The strategies by name, and where each is defined. Free of torch: the command line checks names."""

from __future__ import annotations

from shoal.core.config import HybridSettings
from shoal.core.errors import ConfigError, nearest

AUTO = "auto"  # one worker: single; several: allreduce
STRATEGIES = {
    "single": "shoal.strategies.single:Single",
    "allreduce": "shoal.strategies.allreduce:AllReduce",
    "parameter-server": "shoal.strategies.parameter_server:ParameterServer",
    "async": "shoal.strategies.parameter_server:Asynchronous",
    "incremental": "shoal.strategies.incremental:Incremental",
    "hybrid": "shoal.strategies.hybrid:Hybrid",
}
WITHIN_TEAMS = ("allreduce",)  # hybrid.inner
BETWEEN_TEAMS = ("incremental", "allreduce", "parameter-server", "async")  # hybrid.outer


def check_name(name: str) -> None:
    """Raise a `ConfigError` with the nearest known name unless `name` is a strategy or ``auto``."""
    known = [AUTO, *STRATEGIES]
    if name not in known:
        raise ConfigError(f"unknown strategy {name!r}: {nearest(name, known)}")


def check_pair(settings: HybridSettings) -> None:
    """Raise a `ConfigError` unless `settings` name a pair of strategies that make a hybrid."""
    if settings.inner not in WITHIN_TEAMS:
        hint = nearest(settings.inner, WITHIN_TEAMS)
        raise ConfigError(f"hybrid.inner={settings.inner!r} cannot train within a team: {hint}")
    if settings.outer not in BETWEEN_TEAMS:
        raise ConfigError(
            f"hybrid.outer={settings.outer!r} cannot join teams: {nearest(settings.outer, BETWEEN_TEAMS)}"
        )
