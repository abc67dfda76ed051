"""Where a store keeps its copies: on servers, with all workers, or with one who writes and many who read."""

from __future__ import annotations

import importlib

from shoal.store.modes.base import Membership, Mode, modes

__all__ = ["Membership", "Mode", "make_mode", "modes"]


def make_mode(name: str, membership: Membership) -> Mode:
    """The mode registered as `name`; raises `ConfigError` for an unknown one."""
    for known in ("server", "worker", "broadcast"):
        importlib.import_module(f"{__name__}.{known}")
    return modes.get(name)(membership)
