"""A primary's answers wait until its followers have what they tell of.

Every change has a *position* in the primary's history, and goes to all followers in this order. `Gate` knows how far
each of them is. An answer, to a read as well as to a change, leaves only when every follower that counts has all that
happened before it: so nobody ever sees a change that a failure could take back.

Reads have to stop when somebody else may have taken over. For that a primary holds a *lease* from each follower that
counts: an acknowledgement of something sent at time t is a promise not to take over before t + `lease_s`. The follower
counts from when the message came, which is later, so its promise outlasts the lease whatever the clocks show, as long
as they run at the same speed. A primary that was frozen finds its lease expired, asks for a new one and is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class _Follower:
    reached: int  # it has everything up to this position
    leased_until_s: float
    counts: bool


class Gate:
    """Positions, followers, and answers that wait for them. For one thread; `clock` gives monotonic seconds."""

    def __init__(self, position: int, lease_s: float, clock: Callable[[], float]) -> None:
        self.position = position
        self._lease_s, self._clock = lease_s, clock
        self._followers: dict[str, _Follower] = {}
        self._held: deque[tuple[int, Callable[[], None], Callable[[Exception], None]]] = deque()

    def advance(self) -> int:
        """Something has changed; returns its position."""
        self.position += 1
        return self.position

    def add(self, name: str, counts: bool) -> None:
        """Somebody follows from here on. One that does not count (yet) holds nothing up."""
        self._followers[name] = _Follower(-1, float("-inf"), counts)

    def count(self, name: str) -> None:
        """From now on answers wait for this follower, too."""
        self._followers[name].counts = True

    def drop(self, name: str) -> None:
        """Wait for this follower no more: the keeper says so."""
        self._followers.pop(name, None)
        self.release()

    def acknowledged(self, name: str, position: int, sent_s: float) -> None:
        """A follower has everything up to `position`, which it was sent at `sent_s`."""
        follower = self._followers.get(name)
        if follower is not None:
            follower.reached = max(follower.reached, position)
            follower.leased_until_s = max(follower.leased_until_s, sent_s + self._lease_s)
            self.release()

    def reached(self, name: str) -> int:
        """How far a follower is; -1: nothing is known of it."""
        follower = self._followers.get(name)
        return follower.reached if follower is not None else -1

    @property
    def safe(self) -> int:
        """Everything up to here is with all who count."""
        return min((one.reached for one in self._followers.values() if one.counts), default=self.position)

    @property
    def lagging(self) -> tuple[str, ...]:
        """Who counts and has not everything."""
        return tuple(name for name, one in self._followers.items() if one.counts and one.reached < self.position)

    @property
    def leased(self) -> bool:
        """Whether nobody else can have taken over."""
        now_s = self._clock()
        return all(now_s < one.leased_until_s for one in self._followers.values() if one.counts)

    @property
    def open(self) -> bool:
        """Whether an answer may leave at once."""
        return not self._held and self.safe >= self.position and self.leased

    def pass_through(self, give: Callable[[], None], refuse: Callable[[Exception], None]) -> None:
        """Call `give` as soon as everyone who counts has all that has happened up to now; in order. `refuse` is called
        instead if that will not be."""
        self._held.append((self.position, give, refuse))
        self.release()

    def release(self) -> None:
        """Let go what need not wait any longer."""
        while self._held and self._held[0][0] <= self.safe and self.leased:
            self._held.popleft()[1]()

    def abandon(self, error: Exception) -> None:
        """Refuse all answers that wait."""
        held, self._held = self._held, deque()
        for _, _, refuse in held:
            refuse(error)
