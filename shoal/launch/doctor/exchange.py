"""Orders and answers between the examiner and the hosts, over a coordinator's store: an authenticated channel that is
there already, and no second protocol.

A host posts its facts under its number, then waits for orders, carries them out one by one and posts what came of each.
Values are JSON. Every wait has a deadline; what is not there in time is None.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from shoal.core.errors import ShoalError
from shoal.elastic.messages import Request, StoreAdd, StoreGet, StoreSet

_LOOK_S = 0.5  # a wait is asked for in pieces: an answer that got lost is asked for again
_LARGEST_BYTES = 1 << 16


class Requests(Protocol):
    """What an exchange needs of a `Link`."""

    def request(self, operation: Request, timeout_s: float) -> Any: ...


class Exchange:
    """One end of it. Use each from one thread at a time, or give each thread its own."""

    def __init__(self, requests: Requests, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests, self._clock = requests, clock

    def arrive(self, timeout_s: float) -> int:
        """This host's number, from 1. Raises `ShoalError` if the examiner does not answer."""
        return int(self._requests.request(StoreAdd("doctor/hosts", 1), timeout_s))

    def arrivals(self, timeout_s: float = 5.0) -> int:
        """How many hosts have come."""
        return int(self._requests.request(StoreAdd("doctor/hosts", 0), timeout_s))

    def put(self, key: str, value: object, timeout_s: float = 5.0) -> None:
        """Raises `ShoalError` if it is not taken in time."""
        data = json.dumps(value).encode()
        assert len(data) <= _LARGEST_BYTES, key
        self._requests.request(StoreSet(f"doctor/{key}", data), timeout_s)

    def get(self, key: str, timeout_s: float) -> Any:
        """What was put under `key`, as soon as it is there; None if it is not in time."""
        until = self._clock() + timeout_s
        while True:
            left_s = until - self._clock()
            wait_s = max(0.0, min(_LOOK_S, left_s))
            try:
                data = self._requests.request(StoreGet((f"doctor/{key}",), wait_s), max(wait_s + _LOOK_S, left_s))[0]
            except ShoalError:
                return None
            if data is not None:
                return json.loads(data)
            if left_s <= 0:
                return None
