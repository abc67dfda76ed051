"""The values in which members of a view find each other: small, bounded, and gone with the view. Pure."""

from __future__ import annotations

import re

from shoal.elastic.messages import (
    Refused,
    StoreAdd,
    StoreCall,
    StoreCompareSet,
    StoreCount,
    StoreDelete,
    StoreGet,
    StoreSet,
)

MOST_KEYS = 65536
MOST_BYTES = 32 << 20
_KEPT_VIEWS = 2  # before the current one
_PREFIX = re.compile(r"view-(\d{1,16})/")


class KeyValues:
    """Of the keys that begin with ``view-<number>/``, only those of the current view can be written: who is in an older
    one has no part in what goes on. Others stay as long as the coordinator. `changed` lists the keys written since it
    was emptied, for the journal."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed: list[str] = []
        self._size_bytes = 0

    def do(self, call: StoreCall, view: int) -> object:
        """Carry out a call and return its answer; `view` is the current one's number."""
        if isinstance(call, StoreGet):
            return [self.values.get(key) for key in call.keys]
        if isinstance(call, StoreCount):
            return sum(key.startswith(call.prefix) for key in self.values)
        if _view_of(call.key) not in (None, view):
            return Refused(f"{call.key[:40]} is not of the current view, {view}")
        if isinstance(call, StoreDelete):
            return self._delete(call.key)
        return self._write(call)

    def drop_old(self, view: int) -> None:
        """Forget what belongs to views long left."""
        for key in list(self.values):
            number = _view_of(key)
            if number is not None and number < view - _KEPT_VIEWS:
                self._delete(key)

    def _write(self, call: StoreSet | StoreAdd | StoreCompareSet) -> object:
        before = self.values.get(call.key)
        answer: object = None
        if isinstance(call, StoreSet):
            value = call.value
        elif isinstance(call, StoreAdd):
            try:
                answer = int(before or b"0") + call.amount
            except ValueError:
                return Refused(f"{call.key[:40]} is no number")
            value = str(answer).encode()
        else:
            value = call.value if (before or b"") == call.expected else before or b""
            answer = value
        more_bytes = len(value) - len(before) if before is not None else len(call.key) + len(value)
        if (before is None and len(self.values) >= MOST_KEYS) or self._size_bytes + more_bytes > MOST_BYTES:
            return Refused("the store is full")
        self.put(call.key, value)
        self.changed.append(call.key)
        return answer

    def put(self, key: str, value: bytes) -> None:
        """Set without asking, as when a journal is read."""
        self._forget(key)
        self.values[key] = value
        self._size_bytes += len(key) + len(value)

    def _delete(self, key: str) -> bool:
        found = key in self.values
        if found:
            self._forget(key)
            self.changed.append(key)
        return found

    def _forget(self, key: str) -> None:
        if key in self.values:
            self._size_bytes -= len(key) + len(self.values.pop(key))


def _view_of(key: str) -> int | None:
    match = _PREFIX.match(key)
    return int(match[1]) if match is not None else None
