"""The coordinator as a store of torch: where the members of a process group find each other.

No port of its own is opened for that, and nobody without the run's key can take part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from shoal.core.errors import PeerLost, ShoalError
from shoal.elastic.link import Link
from shoal.elastic.messages import StoreAdd, StoreCall, StoreCompareSet, StoreCount, StoreDelete, StoreGet, StoreSet

_HELD_S = 0.5  # how long the coordinator holds a request for values that are not there yet
_ANSWER_S = 10.0  # how long a coordinator that is started again may take to answer
_WAITED = "waited {:.1f} s for {} in the coordinator's store: timeout"


class CoordinatorStore(Store):
    """The keys that begin with `prefix`, which names a view. Several threads may use it; signatures are torch's own.
    A wait that takes too long raises `RuntimeError`, as its stores do. Once `broken`, waits raise `PeerLost`."""

    def __init__(self, link: Link, prefix: str, timeout_s: float, broken: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._link, self._prefix, self._timeout_s, self._broken = link, prefix, timeout_s, broken

    def set(self, key: str, value: bytes | str) -> None:
        self._ask(StoreSet(self._prefix + key, _bytes(value)))

    def get(self, key: str) -> bytes:
        return self._fetch([key], self._timeout_s)[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._fetch(keys, self._timeout_s)

    def multi_set(self, keys: list[str], values: list[bytes | str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(StoreAdd(self._prefix + key, amount)))

    def check(self, keys: list[str]) -> bool:
        return all(value is not None for value in self._ask(StoreGet(self._named(keys))))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._fetch(keys, self._timeout_s if timeout is None else timeout.total_seconds())

    def compare_set(self, key: str, expected: bytes | str, value: bytes | str) -> bytes:
        return bytes(self._ask(StoreCompareSet(self._prefix + key, _bytes(expected), _bytes(value))))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(StoreDelete(self._prefix + key)))

    def num_keys(self) -> int:
        return int(self._ask(StoreCount(self._prefix)))

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s)

    def has_extended_api(self) -> bool:
        return False

    def _named(self, keys: list[str]) -> tuple[str, ...]:
        return tuple(self._prefix + key for key in keys)

    def _ask(self, call: StoreCall, timeout_s: float = 0.0) -> Any:
        try:
            return self._link.request(call, timeout_s or max(_ANSWER_S, self._timeout_s), self._broken)
        except ShoalError as error:
            if self._broken():
                raise PeerLost("a worker was lost while the members of a view were looking for each other") from None
            raise RuntimeError(str(error)) from None

    def _fetch(self, keys: list[str], timeout_s: float) -> list[bytes]:
        """The values of all keys, once all are there."""
        since = time.monotonic()
        while True:
            left_s = since + timeout_s - time.monotonic()
            held_s = max(0.0, min(_HELD_S, left_s))
            values = self._ask(StoreGet(self._named(keys), held_s), max(left_s, _ANSWER_S))
            if all(value is not None for value in values):
                return list(values)
            if left_s <= 0:
                raise RuntimeError(_WAITED.format(time.monotonic() - since, ", ".join(keys)))


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
