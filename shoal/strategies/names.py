"""The strategies by name, and where each is defined. Free of torch: the command line checks names."""

from __future__ import annotations

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


def check_name(name: str) -> None:
    """Raise a `ConfigError` with the nearest known name unless `name` is a strategy or ``auto``."""
    known = [AUTO, *STRATEGIES]
    if name not in known:
        raise ConfigError(f"unknown strategy {name!r}: {nearest(name, known)}")
