"""Requests without an answer, in the order in which they were made."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from shoal.comm.bulk import Message
from shoal.store.answered import WINDOW


@dataclass
class Pending:
    """One of them. `waits_until_s`: until then the server may keep it for others."""

    message: Message
    future: Future[Message]
    into: Sequence[npt.NDArray[Any] | None] | None
    what: str
    began_s: float
    until_s: float
    waits_until_s: float | None
    change: bool
    attempt: int = 0
    sent_s: float | None = None


class Pendings:
    """All of them. A server remembers so many answers of each client: no more changes than that are under way, so that
    each can be repeated. To be used under a lock."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._by_ticket: dict[int, Pending] = {}
        self._tickets = itertools.count()
        self._unsent: deque[int] = deque()
        self._under_way = 0  # changes

    def add(self, pending: Pending) -> None:
        ticket = next(self._tickets)
        self._by_ticket[ticket] = pending
        self._unsent.append(ticket)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._by_ticket

    def due(self, attempt: int, now_s: float) -> Iterator[tuple[int, Pending]]:
        """Those to be sent now, in order; they count as sent with this attempt."""
        while self._unsent:
            ticket = self._unsent[0]
            pending = self._by_ticket.get(ticket)
            if pending is not None and pending.change and self._under_way >= self._window:
                return
            self._unsent.popleft()
            if pending is not None:
                pending.attempt, pending.sent_s = attempt, now_s
                self._under_way += pending.change
                yield ticket, pending

    def take(self, ticket: int, attempt: int) -> Pending | None:
        """The one that has been answered, if it was asked in this attempt: it is not pending any more."""
        pending = self._by_ticket.get(ticket)
        if pending is None or pending.attempt != attempt:
            return None
        self._remove(ticket, pending)
        return pending

    def take_late(self, now_s: float) -> list[Pending]:
        """Those whose time is up: they are not pending any more."""
        late = {ticket: one for ticket, one in self._by_ticket.items() if now_s > one.until_s}
        for ticket, pending in late.items():
            self._remove(ticket, pending)
        return list(late.values())

    def take_all(self) -> list[Pending]:
        pending, self._by_ticket, self._under_way = self._by_ticket, {}, 0
        self._unsent.clear()
        return list(pending.values())

    def send_again(self) -> None:
        """None of them has been sent."""
        self._under_way = 0
        self._unsent = deque(self._by_ticket)  # in order: tickets only grow
        for pending in self._by_ticket.values():
            pending.sent_s = None

    def waiting_since_s(self) -> float | None:
        """When the oldest that is under way was sent."""
        return min((one.sent_s for one in self._by_ticket.values() if one.sent_s is not None), default=None)

    def _remove(self, ticket: int, pending: Pending) -> None:
        del self._by_ticket[ticket]
        self._under_way -= pending.change and pending.sent_s is not None
