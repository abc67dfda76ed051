"""The servers of a run under drill: how many there are, and which faults they can be hurt by. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.config import Config
from shoal.core.errors import ConfigError
from shoal.drill.kinds import KINDS
from shoal.drill.schedule import FaultPlan

_SERVED = ("parameter-server", "async")


@dataclass(frozen=True)
class Fleet:
    """So many servers, each held by so many processes. `strategy` is whose they are."""

    strategy: str
    servers: int
    replicas: int = 1


def stated_fleet(config: Config, stated: Collection[str]) -> Fleet | None:
    """The servers as far as the command line says; None where the script decides, and only a run shows it."""
    if "strategy" not in stated or config.strategy == "auto":
        return None
    served = config.strategy in _SERVED or (config.strategy == "hybrid" and config.hybrid.outer in _SERVED)
    return Fleet(config.strategy, max(1, config.servers) if served else 0, config.server.replicas)


def recorded_fleet(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Fleet:
    """The servers that a run had, from its saved configuration and its summary."""
    replicas = (config.get("server") or {}).get("replicas", 1)
    return Fleet(str(summary.get("strategy", "")), int(summary.get("servers") or 0), int(replicas))


def check_fleet(kinds: Collection[str], fleet: Fleet) -> None:
    """Refuse faults of servers where there are none. Raises ConfigError that says what to do."""
    for name in kinds:
        if KINDS.get(name).aims_at == "server" and not fleet.servers:
            raise ConfigError(
                f"the fault {name!r} {KINDS.get(name).does}, and strategy {fleet.strategy} has no servers: give "
                f"--strategy parameter-server or async, or leave {name!r} out"
            )


def check_server_plans(plans: Sequence[FaultPlan], fleet: Fleet) -> None:
    """Refuse plans that these servers can never meet, or could not survive in time."""
    check_fleet([plan.kind for plan in plans], fleet)
    for plan in plans:
        kind = KINDS.get(plan.kind)
        if kind.aims_at != "server":
            continue
        if plan.target >= fleet.servers:
            raise ConfigError(
                f"the schedule has a {plan.words()}, but --servers {fleet.servers} are numbered 0 to "
                f"{fleet.servers - 1}"
            )
        if kind.act == "freeze" and plan.lasts_s is None and fleet.replicas < 2:
            raise ConfigError(
                f"the schedule has a {plan.words()} for ever, but a server without a copy is never put out because it "
                "is silent: nobody else has what it holds. Give --replicas 2, or say for how long (seconds)"
            )
