"""The heads of messages between the processes of a store: what each kind has in it, looked at before any of it is
believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoal.store.conforming import conforms
from shoal.store.packing import PackingError

FEED = ("load", "copy", "renew", "end")  # from a primary to its followers
_CHANGE = {"t": int, "g": int, "n": int}
_NEEDED: dict[str, dict[str, Any]] = {
    "who": {},
    "ask": {},
    "snapshot": {},
    "meet": {"worker": int, "address": str},
    "beat": {"assignment": dict[str, Any], "addresses": dict[str, str], "fleet": dict[str, Any]},
    "hold": {"seconds": float},
    "cut": {"number": int, "directory": str},
    "go on": {"ticket": int},
    "load": {**_CHANGE, "piece": int, "last": bool, "what": list},
    "copy": _CHANGE,
    "renew": _CHANGE,
    "end": _CHANGE,
}
_POSSIBLE: dict[str, Any] = {
    "p": int,
    "g": int | None,
    "copy": bool,
    "wait_s": float | None,
    "left_s": float | None,
    "ticket": int | None,
    "served": int,
    "outcome": str,
}


def check_head(head: Mapping[str, Any]) -> str:
    """The kind of a message. Raises `PackingError` for one that is unknown, or whose head lacks a field or has
    something else in it. Commands in it are for `unpack_command`."""
    kind = head.get("k")
    needed = _NEEDED.get(kind) if isinstance(kind, str) else None
    if needed is None:
        raise PackingError(f"no message of the kind {kind!r:.80} is known here")
    for name, hint in needed.items():
        _check(kind, name, head.get(name), hint)
    for name, hint in _POSSIBLE.items():
        if name in head:
            _check(kind, name, head[name], hint)
    return str(kind)


def _check(kind: Any, name: str, value: Any, hint: Any) -> None:
    if not conforms(value, hint) or (isinstance(value, float) and not math.isfinite(value)):
        raise PackingError(f"{name} of a message of the kind {kind!r} cannot be {value!r:.80}")
