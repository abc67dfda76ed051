"""Whether a run may ask for more or fewer workers by itself, within which bounds, and how it says so."""

from __future__ import annotations

from typing import Any

from shoal.core.config import Config, flatten
from shoal.core.errors import ConfigError
from shoal.launch.scaling import RESIZE
from shoal.launch.session import Session
from shoal.strategies.base import Strategy
from shoal.strategies.sizing import Bounds, SizeWish


def bounds_of(config: Config, strategy: Strategy[Any], session: Session) -> Bounds | None:
    """The bounds of `elastic.size=auto`, None where the number of workers is fixed. Raises `ConfigError` where nobody
    would measure, or nobody could carry it out."""
    elastic = config.elastic
    if elastic.size != "auto":
        return None
    assert elastic.max_workers is not None, "checked with the configuration"
    if not strategy.needs.sizes:
        raise ConfigError(
            f"elastic.size=auto: strategy {strategy.name} does not measure what computing and sending cost: "
            "give --strategy incremental, or leave elastic.size at fixed"
        )
    if not session.attendance.survives:
        raise ConfigError(
            "elastic.size=auto: a script that runs on its own has nobody to start workers for it: run it with "
            "`shoal train`, or leave elastic.size at fixed"
        )
    stated = {name for _, settings in session.layers for name in flatten(settings)}
    if session.workers == 1 and "elastic.max_workers" not in stated:
        raise ConfigError(
            f"elastic.size=auto: elastic.max_workers={elastic.max_workers} is stated in the script, but a run for one "
            "worker must know before the script runs that others may come: give --max-workers"
        )
    return Bounds(min(elastic.min_workers, elastic.max_workers), elastic.max_workers)


def size_message(wish: SizeWish) -> dict[str, Any]:
    """What the launcher is told of a wish."""
    return {"type": RESIZE, "workers": wish.workers, "reason": wish.reason}
