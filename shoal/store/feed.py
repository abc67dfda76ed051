"""What a primary sends to one follower: the whole state once, then every change, in order, and now and then a sign of
life. See `shoal.store.replication` for what the answers mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal.comm.bulk import BulkClient, Message, RequestFailed
from shoal.comm.keys import ClientKeys
from shoal.store.description import Encrypt
from shoal.store.state import Arrays, State, as_bytes, from_bytes
from shoal.store.turned_away import OldTerm

Array = npt.NDArray[Any]
PIECE_BYTES = 32 << 20


class Loop(Protocol):
    """The thread that owns a server's state. Both may be called from any thread."""

    def call(self, function: Callable[[], None]) -> None: ...
    def later(self, seconds: float, function: Callable[[], None]) -> Any: ...


@dataclass(frozen=True)
class Origin:
    """Whose changes these are."""

    post: int
    term: int
    generation: int


@dataclass(frozen=True)
class Reactions:
    """What is done, in the loop's thread, when a follower answers: it has everything up to a position that it was sent
    at a time; it does not answer any more (once); it says that we are not the primary any more (once)."""

    reached: Callable[[int, float], None]
    lost: Callable[[BaseException], None]
    old: Callable[[], None]


class Feed:
    """To one follower, called `name`. Used in the loop's thread."""

    def __init__(
        self,
        name: str,
        address: str,
        keys: ClientKeys,
        origin: Origin,
        loop: Loop,
        reactions: Reactions,
        *,
        encrypt: Encrypt = "auto",
    ) -> None:
        self._origin, self._loop, self._reactions = origin, loop, reactions
        self._over = False
        self._client = BulkClient(
            address, keys, name=f"server {origin.post}", server_name=name, deadline_s=None, encrypt=encrypt
        )

    def load(self, state: State, position: int) -> None:
        """Send the whole state as it is now, which has all changes up to `position`."""
        meta, arrays = state.dump(copy=True)
        pieces = list(cut(meta, arrays))
        for number, (head, parts) in enumerate(pieces):
            last = number == len(pieces) - 1
            # only with the last piece does the follower have anything
            self._send("load", position if last else -1, {"piece": number, "last": last, **head}, parts)

    def send(self, position: int, command: Mapping[str, Any], arrays: Sequence[Array]) -> None:
        """Send one change: the command as it came."""
        self._send("copy", position, command, arrays)

    def renew(self, position: int) -> None:
        """Ask whether we are still the primary. All changes up to `position` have been sent before."""
        self._send("renew", position, {}, [])

    def end(self) -> Future[Message] | None:
        """Say that nothing more will come, and that all is well."""
        return self._send("end", -1, {}, [])

    def close(self) -> None:
        """Send no more. From the loop's thread, or when that has ended."""
        self._over = True
        self._client.close()

    def _send(
        self, kind: str, position: int, fields: Mapping[str, Any], arrays: Sequence[Array]
    ) -> Future[Message] | None:
        if self._over:
            return None
        origin = self._origin
        head = {
            **fields, "k": kind, "p": origin.post, "t": origin.term, "g": origin.generation, "n": position
        }  # fmt: skip
        sent_s = time.monotonic()
        future = self._client.submit(Message(head, list(arrays)))

        def answered(done: Future[Message]) -> None:
            if not self._over:  # else the loop may have ended
                self._loop.call(lambda: self._answered(done, position, sent_s))

        future.add_done_callback(answered)
        return future

    def _answered(self, done: Future[Message], position: int, sent_s: float) -> None:
        if self._over:
            return
        error = done.exception()
        if error is None:
            if position >= 0:
                self._reactions.reached(position, sent_s)
            return
        self._over = True
        if isinstance(error, RequestFailed) and error.kind == OldTerm.__name__:
            self._reactions.old()
        else:
            self._reactions.lost(error)


def cut(meta: Mapping[str, Any], arrays: Arrays) -> Iterator[tuple[dict[str, Any], list[Array]]]:
    """A dump in messages of moderate size, each with what `Assembly` needs to put it together."""
    described = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    yield {"what": []}, [as_bytes({"meta": meta, "arrays": described})]
    what: list[list[Any]] = []
    parts: list[Array] = []
    size = 0
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array).reshape(-1)
        step = max(1, PIECE_BYTES // max(1, flat.itemsize))
        for start in range(0, flat.size, step):
            part = flat[start : start + step]
            what.append([name, start])
            parts.append(part)
            size += part.nbytes
            if size >= PIECE_BYTES:
                yield {"what": what}, parts
                what, parts, size = [], [], 0
    yield {"what": what}, parts


class Assembly:
    """Puts the pieces of a dump together, as they come in order."""

    def __init__(self) -> None:
        self._meta: dict[str, Any] = {}
        self._arrays: Arrays = {}

    def take(self, head: Mapping[str, Any], arrays: Sequence[Array]) -> None:
        parts = list(arrays)
        if head["piece"] == 0:
            found = from_bytes(parts[0])
            self._meta = found["meta"]
            self._arrays = {name: np.empty(shape, np.dtype(dtype)) for name, (dtype, shape) in found["arrays"].items()}
            return
        for (name, start), part in zip(head["what"], parts, strict=True):
            self._arrays[name].reshape(-1)[start : start + part.size] = part

    def state(self) -> State:
        """The state, once all pieces are here."""
        return State.load(self._meta, self._arrays, copy=False)
