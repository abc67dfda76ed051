"""The keeper of a fleet: sees to it that every post is held, and that the fleet has snapshots to go back to.

It asks every process several times a lease how it does, decides by `Succession`, and has ended ones started again. It
starts nothing itself: a *starter* does, and tells it what has become of the processes. It is never on the path of a
request: while it is away everything goes on, and only failures have to wait for it.

When a post's state is lost (its only process, or both, have ended), all posts go back to the last snapshot together,
since values, tasks and commits of one moment belong together. Clients notice by the *generation*.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from shoal.comm.bulk import BulkClient, Message
from shoal.comm.keys import ClientKeys
from shoal.core.errors import ShoalError, UserError
from shoal.store.description import FleetDescription
from shoal.store.places import Place, places
from shoal.store.snapshot import newest, next_number, prepare
from shoal.store.snapshotting import Snapshotting
from shoal.store.succession import Report, Succession
from shoal.store.terms import FleetTerms, Starter

__all__ = ["FleetTerms", "Keeper", "Starter"]

_BEATS_PER_LEASE = 7
_LONGEST_BEAT_S = 0.2
_MISSED_LEASES = 3  # in which nothing is heard of a primary, before it is said that nobody can take over


class Keeper:
    """Begins at once, in a thread of its own. All methods may be called from any thread.

    `on_change(description)`, `on_notice(words)` and `on_lost(words)`, for a process that was ready and has ended, are
    called in its thread and must not wait. `snapshots`: where they are kept; the newest one there is what the fleet
    begins with.
    """

    def __init__(
        self,
        terms: FleetTerms,
        keys: ClientKeys,
        starter: Starter,
        *,
        snapshots: Path | None = None,
        on_change: Callable[[FleetDescription], None] = lambda description: None,
        on_notice: Callable[[str], None] = lambda words: None,
        on_lost: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.terms, self.failure = terms, ""
        self._keys, self._starter = keys, starter
        self._on_change, self._on_notice, self._on_lost = on_change, on_notice, on_lost
        self._posts = [Succession(terms.lease_s, terms.replicas) for _ in range(terms.servers)]
        self._places = places(terms)
        self._snapshots, self._first_snapshot = snapshots, 0
        if snapshots is not None:
            prepare(snapshots)
            self._check_snapshot(snapshots)
        self._snapshotting = Snapshotting(self)
        self._generation = 0
        self._description: FleetDescription | None = None
        self._changed = threading.Condition()
        self._news: queue.SimpleQueue[Callable[[float], None] | None] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="shoal-keeper", daemon=True)
        self._thread.start()

    # ---- for others

    def on_started(self, name: str, address: str, pid: int) -> None:
        """A process listens."""
        self._news.put(partial(self._started, name, address, pid))

    def on_ended(self, name: str, how: str) -> None:
        """A process has ended, or could not be started; `how` in words."""
        self._news.put(partial(self._ended, name, how))

    @property
    def description(self) -> FleetDescription | None:
        """Where the fleet is; None until all have started once."""
        return self._description

    def wait_ready(self, deadline_s: float) -> FleetDescription:
        """Wait until every post is held, by as many copies as there should be. Raises `UserError` if processes cannot
        start."""
        began_s = time.monotonic()
        with self._changed:
            while not self.ready:
                left_s = began_s + deadline_s - time.monotonic()
                if self.failure:
                    raise UserError(f"a server of the store could not start: {self.failure}")
                if left_s <= 0:
                    raise ShoalError(f"the servers of the store were not ready within {deadline_s:.0f} s")
                self._changed.wait(left_s)
        assert self._description is not None
        return self._description

    @property
    def ready(self) -> bool:
        """Whether every post is held by as many copies as there should be."""
        return self._description is not None and all(post.settled for post in self._posts)

    def keep_snapshots_in(self, directory: Path) -> None:
        """Write snapshots there from now on. What lies there already is not used."""
        prepare(directory)
        self._first_snapshot, self._snapshots = next_number(directory), directory

    def snapshot(self, deadline_s: float) -> Path:
        """Make one now and wait for it. Raises `UserError` if the fleet keeps none, `ShoalError` if it failed."""
        return self._snapshotting.make(deadline_s)

    def held(self, post: int) -> bool:
        """Whether a post's primary knows that it is."""
        return self._posts[post].held

    def standing(self, post: int) -> tuple[int, int, bool]:
        """A post's term and revision, and whether it is held by as many copies as there should be."""
        now = self._posts[post]
        return now.assignment.term, now.assignment.revision, now.settled

    @property
    def snapshots(self) -> Path | None:
        return self._snapshots

    @property
    def terms_of_posts(self) -> tuple[int, ...]:
        """Grows, for each post, with every new primary."""
        return tuple(post.assignment.term for post in self._posts)

    def primary(self, post: int) -> BulkClient | None:
        """The connection to whoever holds a post, if there is one."""
        name = self._posts[post].assignment.primary
        return next((place.client for place in self._places if place.name == name), None)

    def primary_name(self, post: int) -> str:
        return self._posts[post].assignment.primary

    def after_loss_of(self, name: str, post: int) -> str:
        """What follows when this process of a post has ended, in words."""
        now, living = self._posts[post].assignment, self._posts[post].living
        copied = any(other != name and other in living for other in (now.primary, now.backup))
        return "its copy goes on, and another is started" if copied else "it is started again"

    def close(self) -> None:
        """End the thread and all connections, not the processes. May be called twice."""
        self._closing = True
        self._news.put(None)
        self._thread.join()
        self._snapshotting.close()
        for place in self._places:
            place.disconnect()

    # ---- the thread

    def _run(self) -> None:
        beat_s = min(self.terms.lease_s / _BEATS_PER_LEASE, _LONGEST_BEAT_S)
        while not self._closing:
            with contextlib.suppress(queue.Empty):
                news = self._news.get(timeout=beat_s / 2)
                while news is not None:
                    news(time.monotonic())
                    news = self._news.get_nowait()
            self._turn(time.monotonic(), beat_s)

    def _turn(self, now_s: float, beat_s: float) -> None:
        self._start_due(now_s)
        for post in self._posts:
            post.decide(now_s)
        self._begin_where_lost()
        for number, post in enumerate(self._posts):
            for words in post.notices:
                self._on_notice(f"server {number}: {words}")
            post.notices.clear()
        for place in self._places:
            self._end_silent(place, now_s)
            self._see_to(place, now_s, beat_s)
        self._snapshotting.look(now_s)
        with self._changed:
            self._changed.notify_all()

    def _start_due(self, now_s: float) -> None:
        for place in self._places:
            if place.start_at_s is not None and now_s >= place.start_at_s:
                self._starter.start(place.next_name(now_s), place.post, place.address or place.listen)

    def _place(self, name: str) -> Place | None:
        return next((place for place in self._places if place.name == name), None)

    def _started(self, name: str, address: str, pid: int, now_s: float) -> None:
        place = self._place(name)
        if place is None:
            return
        moved, place.address, place.pid = place.address != address, address, pid
        self._posts[place.post].started(name, now_s)
        if moved and all(one.address for one in self._places):
            servers = [
                tuple(one.address for one in self._places if one.post == post) for post in range(self.terms.servers)
            ]
            epoch = self._description.epoch + 1 if self._description is not None else 1
            self._description = FleetDescription(tuple(servers), self.terms.encrypt, epoch)
            self._on_change(self._description)

    def _ended(self, name: str, how: str, now_s: float) -> None:
        place = self._place(name)
        if place is None:
            return
        self._on_notice(f"server {place.post}: {name} {how}")
        if name in self._posts[place.post].living:
            who = f"server {place.post} on {socket.gethostname()} (process {place.pid})"
            why = f"was ended: {place.why_ended}" if place.condemned else how
            self._on_lost(f"{who} {why}; {self.after_loss_of(name, place.post)}")
        self._posts[place.post].ended(name)
        if not place.address and not place.condemned:
            self.failure = how  # it has never been there
        place.ended(now_s)

    def _begin_where_lost(self) -> None:
        """At the beginning, and when state was lost: all posts begin from one snapshot."""
        needed = any(post.assignment.revision == 0 or post.lost for post in self._posts)
        if not needed or self._description is None or not all(post.living for post in self._posts):
            return
        found = newest(self._snapshots) if self._snapshots is not None else None
        if found is not None and found.number < self._first_snapshot:
            found = None
        # a time, so that it also grows from one fleet in these ports to the next
        self._generation = max(self._generation + 1, time.time_ns() // 1_000_000)
        for post in self._posts:
            post.begin(self._generation, str(found.path) if found is not None else "")
        self._on_notice(f"begins from snapshot {found.path.name}" if found is not None else "begins empty")

    # ---- one process

    def _end_silent(self, place: Place, now_s: float) -> None:
        """End a process that is silent: soon where it holds no post, else when nothing has shown for `terms.hang_s`
        that it lives. Whoever waits for it waits for that, so this is the one deadline."""
        if not place.name or place.condemned:
            return
        post = self._posts[place.post]
        unheard_s = post.silent_s(place.name, now_s) if place.name in post.living else float("inf")
        if place.name in post.living and place.name != post.assignment.primary and unheard_s > self.terms.patience_s:
            place.condemned = f"no answer for {unheard_s:.0f} s"
        elif self.terms.hang_s is not None:
            silent_s = place.vigil.silent_s(self._starter.pid(place.name), unheard_s, now_s)
            if silent_s > self.terms.hang_s:
                place.condemned = f"no sign of life for {silent_s:.0f} s"
        if place.condemned:
            self._on_notice(f"server {place.post}: {place.name} is ended: {place.why_ended}")
            self._starter.kill(place.name, place.condemned)

    def _see_to(self, place: Place, now_s: float, beat_s: float) -> None:
        post = self._posts[place.post]
        if place.name not in post.living:
            return
        if self.terms.hang_s is None:  # else it is ended in time
            self._say_silence(place, post, post.silent_s(place.name, now_s))
        if now_s - place.asked_s > beat_s:
            place.connect(self._keys, self.terms)
        news = place.asked_revision != post.assignment.revision
        if place.client is not None and not place.asked and (news or now_s - place.asked_s >= beat_s):
            self._ask(place, post, now_s)

    def _say_silence(self, place: Place, post: Succession, silent_s: float) -> None:
        """Whoever asks a primary that is frozen waits, and nobody can take over where it has no backup: say so, once,
        and when it is over. It may be well and only cut off, and nobody else has its state: nobody ends it for that."""
        if place.name != post.assignment.primary or (silent_s <= _MISSED_LEASES * self.terms.lease_s) != place.missed:
            return
        place.missed = not place.missed
        who = f"server {place.post}: {place.name}"
        if not place.missed:
            self._on_notice(f"{who} answers again")
            return
        copy = "its backup is away" if self.terms.replicas > 1 else "it has no backup"
        kept = "the last snapshot" if self.terms.snapshot_s is not None else "nothing"
        self._on_notice(
            f"{who} (process {place.pid}) was silent for {silent_s:.1f} s, and {copy}: what is asked of it waits until "
            f"it goes on. If it never will, end it (kill -9 {place.pid}): another is started, and all begin from {kept}"
        )

    def _ask(self, place: Place, post: Succession, now_s: float) -> None:
        served, outcome = self._snapshotting.outcome(place.name)
        head: dict[str, Any] = {
            "k": "beat",
            "assignment": post.assignment.to_plain(),
            "addresses": {one.name: one.address for one in self._places if one.post == place.post},
            "fleet": self._description.to_plain() if self._description is not None else {},
            "served": served,
            "outcome": outcome,
        }

        def answered(name: str, client: BulkClient, done: Future[Message]) -> None:
            self._news.put(partial(self._answered, name, client, done))

        place.ask(head, post.assignment.revision, now_s, answered)

    def _answered(self, name: str, client: BulkClient, done: Future[Message], now_s: float) -> None:
        place = self._place(name)
        if place is None or place.client is not client:
            return
        place.asked = False
        error = done.exception()
        if error is not None:
            self._on_notice(f"server {place.post}: {name} cannot be asked: {error}")
            place.disconnect()
            return
        head = done.result().head
        self._posts[place.post].heard(Report.from_plain(head["report"]), now_s)
        self._snapshotting.heard(name, head)

    def _check_snapshot(self, directory: Path) -> None:
        found = newest(directory)
        if found is not None and found.servers != self.terms.servers:
            raise UserError(
                f"the snapshot {found.path} is of {found.servers} servers, not {self.terms.servers}: ask for "
                f"{found.servers}, or for another directory"
            )
