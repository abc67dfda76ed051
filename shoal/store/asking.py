"""What all parts of a `KVStore` are built on: asking servers, and knowing where keys lie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import numpy.typing as npt

from shoal.comm.bulk import Message
from shoal.core.errors import ConfigError, nearest
from shoal.store.answers import Answer, Eras, Refused
from shoal.store.client import Link
from shoal.store.directory import Atlas, Declaration
from shoal.store.errors import StateLost, StateReplaced, StoreRefused
from shoal.store.futures import after, gather
from shoal.store.keys import Slice
from shoal.store.modes.base import Mode
from shoal.store.operations import Change, Declare, Era, GetEras, Operation
from shoal.store.state import Call, unpack_reply

T = TypeVar("T")
Array = npt.NDArray[Any]
Maker = Callable[[str, int], Change]
Places = tuple[tuple[int, Slice], ...]  # the slices of a key in the order of its units, each with its server

_MARGIN_S = 30.0  # what has a deadline of its own ends well within


class Asking:
    """Base of `KVStore`. May be used from any thread."""

    def __init__(self, mode: Mode, deadline_s: float, placement: str) -> None:
        self._mode, self.deadline_s, self._placement = mode, deadline_s, placement
        self._atlas = Atlas(mode.posts)
        self._learning = threading.Lock()
        self.era: Era | None = None  # in which this client makes its changes; None: whatever the era
        self.on_wait: Callable[[bool], None] = lambda waiting: None  # told when a wait for servers begins and ends

    @property
    def servers(self) -> int:
        """Over how many servers (or, in peers' modes, owners) the keys are spread."""
        return self._mode.posts

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self._mode.links)

    @property
    def bytes_received(self) -> int:
        return sum(link.bytes_received for link in self._mode.links)

    # ---- asking

    def _deadline(self, deadline_s: float | None) -> float:
        return self.deadline_s if deadline_s is None else deadline_s

    def _change(self, post: int, make: Maker, what: str, deadline_s: float | None, **how: Any) -> Future[Any]:
        """Have a server make a change, if this worker may make any."""
        return self._change_at(self._mode.writer(post), post, make, what, deadline_s, **how)

    def _change_at(
        self, link: Link, post: int, make: Maker, what: str, deadline_s: float | None, as_made: bool = False, **how: Any
    ) -> Future[Any]:
        """`as_made`: the change says itself in which era it is, if in any."""
        era = None if as_made else self.era
        named = make if era is None else lambda client, sequence: replace(make(client, sequence), era=era)
        sent = link.submit(named, what, self._deadline(deadline_s), extra={"p": post}, **how)
        return after(sent, lambda message: self._checked(message, what, post))

    def _read(
        self,
        post: int,
        operation: Operation,
        what: str,
        deadline_s: float | None,
        worker: int | None = None,
        **how: Any,
    ) -> Future[Any]:
        """Read from a server, or from one worker's copy."""
        link, extra = self._mode.reader(post, worker)
        sent = link.submit(operation, what, self._deadline(deadline_s), extra=extra, **how)
        return after(sent, lambda message: self._checked(message, what, post))

    def _call(self, what: str, deadline_s: float | None = None, waits: bool = False, **given: Any) -> Future[Any]:
        """A call to directory or rounds, which are with the first server."""
        link = self._mode.desk()
        sent = link.submit(Call(what, given), what, self._deadline(deadline_s), waits=waits, extra={"p": 0})
        return after(sent, lambda message: self._checked(message, what, 0))

    def _checked(self, message: Message, what: str, post: int) -> Any:
        answer: Answer | dict[str, Any] = unpack_reply(message.head, list(message.arrays))
        if isinstance(answer, Refused) and answer.reason == "unknown":
            # Only what was declared there is asked for: that server has begun anew since we looked where things lie.
            self._forget_keys()
        if isinstance(answer, Refused) and answer.reason in ("era", "unknown"):
            raise StateReplaced(what, post, answer.detail)
        if isinstance(answer, Refused):
            raise StoreRefused(what, post, answer.reason, answer.detail)
        return answer

    def wait(self, future: Future[T], deadline_s: float | None = None) -> T:
        """The result of a call that has returned a future. Every request ends by itself at its deadline; this one only
        makes sure."""
        self.on_wait(True)
        try:
            return future.result(self._deadline(deadline_s) + _MARGIN_S)
        finally:
            self.on_wait(False)

    def _wait(self, future: Future[T], deadline_s: float | None = None) -> T:
        return self.wait(future, deadline_s)

    # ---- knowing where keys lie

    def _forget_keys(self) -> None:
        """The servers have gone back: they may not know all keys any more. Whoever is learning learns in vain."""
        self._atlas = Atlas(self._mode.posts)

    def register(self, declarations: Sequence[Declaration], deadline_s: float | None = None) -> None:
        """Declare keys together, which lets them be placed evenly together. One that is declared in the same way
        already is left as it is; raises `ConfigError` if it is declared otherwise."""
        self._mode.writer(0)  # says so if this worker may not
        batch = [one.to_plain() for one in declarations]
        with self._learning:
            self._learn("register", deadline_s, placement=self._placement, batch=batch)

    def _learn(self, what: str, deadline_s: float | None, **given: Any) -> Atlas:
        """Take in what is new, and make sure that every server holds its slices of it. With `_learning` held."""
        atlas = self._atlas  # of before the question: an answer of servers that go back meanwhile is for nobody
        new = atlas.learn(self._wait(self._call(what, deadline_s, **given), deadline_s))
        by_post: dict[int, list[Any]] = {}
        for declaration in new:
            for post, part in atlas.of(declaration.key.name):
                by_post.setdefault(post, []).append(declaration.holding(part))
        try:
            futures = []
            for post, holdings in by_post.items():
                make = maker(Declare, holdings=tuple(holdings))
                link = self._mode.links[post]
                futures.append(self._change_at(link, post, make, "declare", deadline_s, stream="/declare"))
            self._wait(gather(futures, lambda answers: None), deadline_s)
        except StateLost:
            self._forget_keys()  # who asks next must not take for its own what others have declared since
            raise
        return atlas

    def _find(self, key: str, deadline_s: float | None = None) -> tuple[Declaration, Places]:
        """What is known of a key, and where its slices lie; asks the first server if nothing is known. Raises
        `StateLost` where it was in the state that this client works with, which is gone, and `ConfigError` where nobody
        has declared it."""
        atlas = self._atlas
        if key not in atlas.declarations:
            with self._learning:
                atlas = self._atlas
                if key not in atlas.declarations:
                    atlas = self._learn("directory", deadline_s)
        known = atlas.declarations
        if key not in known:
            self._check_era(f"look for {key!r}", deadline_s)
            hint = nearest(key, known) if known else "it has no keys yet"
            raise ConfigError(f"there is no key {key!r} in this store ({hint}): set or declare it first")
        return known[key], atlas.of(key)

    def _check_era(self, what: str, deadline_s: float | None) -> None:
        """Who is told once that the servers have gone back may be told in something whose end nobody has looked at yet.
        So whoever works with one state is told again, as long as that is not the one that is there."""
        era = self.era
        if era is None:
            return
        there: Eras = self._wait(self._read(0, GetEras(), what, deadline_s), deadline_s)
        now = there.numbers.get(era.run)
        if now != era.number:
            raise StateReplaced(what, 0, f"era {era.number} of run {era.run} is gone, the run is in era {now} here")

    def slices(self, key: str, deadline_s: float | None = None) -> tuple[Slice, ...]:
        """How a key is cut over the servers, in the order of its units."""
        return tuple(part for _, part in self._find(key, deadline_s)[1])

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of all keys that have been declared by anybody."""
        with self._learning:
            return tuple(self._learn("directory", None).declarations)


def maker(kind: Callable[..., Change], **fields: Any) -> Maker:
    """Makes the change when its number is known."""
    return lambda client, sequence: kind(client=client, sequence=sequence, **fields)
