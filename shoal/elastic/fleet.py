"""Where the servers of a run are, told by its launcher through the coordinator's store."""

from __future__ import annotations

import json
import time

from shoal.comm.keys import ClientKeys
from shoal.core.errors import ShoalError
from shoal.elastic.link import Link
from shoal.elastic.messages import StoreDelete, StoreGet, StoreSet
from shoal.store.access import FleetAccess
from shoal.store.description import FleetDescription

_HELD_S = 0.5  # how long the coordinator holds a request for what is not there yet


def fleet_key(fit: int) -> str:
    """Under what name the description of the servers of a fit() lies in the store. It belongs to no view."""
    return f"fleet/{fit}"


def told(fit: int, description: FleetDescription) -> StoreSet:
    """What makes the servers of a fit() known. The key to them is that of the run, which all members have."""
    return StoreSet(fleet_key(fit), json.dumps(description.to_plain()).encode())


def withdrawn(fit: int) -> StoreDelete:
    """What takes that back."""
    return StoreDelete(fleet_key(fit))


def access_to(link: Link, keys: ClientKeys, fit: int, timeout_s: float) -> FleetAccess:
    """The way to the servers of a fit(). Whoever asks for their description waits up to `timeout_s` for it."""

    def describe() -> FleetDescription:
        since = time.monotonic()
        while True:
            left_s = since + timeout_s - time.monotonic()
            held_s = max(0.0, min(_HELD_S, left_s))
            (data,) = link.request(StoreGet((fleet_key(fit),), held_s), max(left_s, _HELD_S))
            if data is not None:
                return FleetDescription.from_plain(json.loads(data), "the launcher")
            if left_s <= 0:
                raise ShoalError(
                    f"waited {time.monotonic() - since:.0f} s for the servers that the launcher starts: see "
                    "server-0.log in the run's logs, or raise elastic.start_s"
                )

    return FleetAccess(describe, keys)
