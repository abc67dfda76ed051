"""The servers of one fit(): processes for the keeper that decides on them, started, heard, and looked at.

They keep no snapshots: a run whose servers have lost its model goes back to its own checkpoint, where the model and the
record of its samples are together.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.comm.keys import RunKeys
from shoal.core.errors import ShoalError
from shoal.core.vitals import look_at
from shoal.launch.failure import Account, account_of_end, account_of_freeze
from shoal.launch.nursery import Nursery
from shoal.launch.serving import PLUGINS, ServerChild
from shoal.launch.zygote_messages import Exited, Forked
from shoal.store.description import FleetDescription
from shoal.store.keeper import FleetTerms, Keeper
from shoal.store.spec import ServerSpec


@dataclass(frozen=True)
class Means:
    """What fleets need of their launcher. `later` has a function called in the launcher's thread, from any thread.
    `plugins` are modules of the user's, in the `search_path`."""

    nursery: Nursery
    selector: selectors.BaseSelector
    keys: RunKeys
    search_path: tuple[str, ...]
    later: Callable[[Callable[[], None]], None]
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class LostServer:
    """A server process that has ended while it was needed. `ended_s`: monotonic; `led`: it held its post."""

    post: int
    pid: int
    account: Account
    ended_s: float
    led: bool
    term: int  # of its post, at that time
    follows: str  # what comes of it, in words


class LaunchedFleet:
    """Begins at once. For the launcher's thread, but for `start`, `kill` and `pid`, which are for its keeper's.

    `on_change(description)`, `on_ready(child)` and `on_ended(lost)` are called in the launcher's thread; `on_problem`
    with why a server cannot begin, which it would not do the next time, either; `on_stir` when `standing` may change.
    """

    def __init__(self, fit: int, terms: FleetTerms, means: Means) -> None:
        self.fit, self.terms = fit, terms
        self.over = False
        self.ready = False
        self.children: dict[str, ServerChild] = {}
        self.on_change: Callable[[FleetDescription], None] = lambda description: None
        self.on_ready: Callable[[ServerChild], None] = lambda child: None
        self.on_ended: Callable[[LostServer], None] = lambda lost: None
        self.on_problem: Callable[[str], None] = lambda why: None
        self.on_stir: Callable[[], None] = lambda: None
        self._told: dict[int, tuple[int, int, bool]] = {}
        self._means = means
        self._logs: Path | None = None
        self._keeper: Keeper | None = None
        self._description: FleetDescription | None = None
        self._begun: set[int] = set()  # posts of which some process was ready once

    def begin(self) -> None:
        """Start them all."""
        self._keeper = Keeper(
            self.terms,
            self._means.keys.client(),
            self,
            on_change=lambda description: self._means.later(partial(self._changed, description)),
            on_notice=lambda words: self._means.later(self.on_stir),
        )

    def _changed(self, description: FleetDescription) -> None:
        self._description = description
        if self.ready:
            self.on_change(description)

    def look_whether_ready(self) -> None:
        """Say where they are, once every server is held by as many copies as there should be: before that, the loss of
        one would lose what it has been told."""
        if self.ready or self._keeper is None or self._description is None:
            return
        with contextlib.suppress(ShoalError):
            self._keeper.wait_ready(0.0)
            self.ready = True
            self.on_change(self._description)

    # -- for the keeper, in its thread

    def start(self, name: str, post: int, listen: str) -> None:
        self._means.later(partial(self._start, name, post, listen))

    def kill(self, name: str, why: str) -> None:
        self._means.later(partial(self._put_out_silent, name, why))

    def pid(self, name: str) -> int:
        child = self.children.get(name)
        return child.pid if child is not None else 0

    # -- processes

    def _start(self, name: str, post: int, listen: str) -> None:
        if self.over:
            return
        terms, means = self.terms, self._means
        plugins = (*PLUGINS, *means.plugins)
        spec = ServerSpec(name, post, means.keys, listen, terms.lease_s, terms.encrypt, plugins, means.search_path)
        copy = "" if name.startswith(f"{post}a") else "b"
        child = self.children[name] = ServerChild(means.nursery, spec, copy)
        if self._logs is not None:
            child.open_log(self._logs)
        child.start()
        assert child.channel is not None
        assert child.log is not None
        means.selector.register(child.channel, selectors.EVENT_READ, partial(self._on_channel, child))
        means.selector.register(child.log.fd, selectors.EVENT_READ, partial(self._on_output, child))

    def _put_out_silent(self, name: str, why: str) -> None:
        child = self.children.get(name)
        if child is not None and child.child:
            vitals = look_at(child.pid)
            child.account = account_of_freeze(vitals.state if vitals is not None else "", why)
            self._means.nursery.signal(child.child, signal.SIGKILL)

    def _on_channel(self, child: ServerChild) -> None:
        if child.hear() and self._keeper is not None:
            self._begun.add(child.post)
            self._keeper.on_started(child.spec.name, child.address, child.pid)
            self.on_ready(child)

    def _on_output(self, child: ServerChild) -> None:
        if child.log is not None and not child.log.pump():
            self._means.selector.unregister(child.log.fd)

    def on_child(self, event: Forked | Exited) -> bool:
        """Something happened to a child of the nursery; returns whether that is one of these servers."""
        child = next((child for child in self.children.values() if child.child == event.key), None)
        if child is None:
            return False
        if isinstance(event, Forked):
            child.pid = event.pid
        else:
            self._on_exit(child, event)
        return True

    def _on_exit(self, child: ServerChild, event: Exited) -> None:
        self._on_channel(child)  # its last words may still lie there, and explain its end
        self._forget(child)
        child.on_exit()
        words = child.last_words()
        child.close()
        del self.children[child.spec.name]
        keeper = self._keeper
        if self.over or keeper is None:
            return
        account = child.account or account_of_end(event.code)
        if child.post not in self._begun and event.code >= 0:  # the next one would come to that, too
            self.on_problem(child.problem or f"it {account.cause}\n\n{words}")
            return
        name, post = child.spec.name, child.post
        led, term = keeper.primary_name(post) == name, keeper.terms_of_posts[post]
        self.on_ended(LostServer(post, child.pid, account, event.at_s, led, term, keeper.after_loss_of(name, post)))
        keeper.on_ended(name, account.cause)

    def _forget(self, child: ServerChild) -> None:
        for fd in (child.channel, child.log and child.log.fd):
            with contextlib.suppress(KeyError, ValueError):
                self._means.selector.unregister(fd)  # type: ignore[arg-type]

    def serves_again(self, lost: LostServer) -> bool:
        """Whether what a lost server held is held again."""
        keeper = self._keeper
        taken_over = keeper is not None and (not lost.led or keeper.terms_of_posts[lost.post] > lost.term)
        return keeper is not None and taken_over and keeper.held(lost.post)

    def standing(self) -> list[tuple[int, int, bool]]:
        """What is news of who holds which server: its number, its term, whether it is whole. Nothing before all are."""
        keeper = self._keeper
        if keeper is None or not self.ready:
            return []
        news = []
        for post in range(self.terms.servers):
            term, revision, whole = now = keeper.standing(post)
            before = self._told.get(post, (0, 0, False))
            # where it was not whole for a moment that nobody saw, that it is whole again is news all the same
            if (term, whole) != (before[0], before[2]) or (whole and revision != before[1]):
                news.append((post, term, whole))
            self._told[post] = now
        return news

    @property
    def whole(self) -> bool:
        """Whether all servers were whole when that was last looked at."""
        return all(whole for _, _, whole in self._told.values())

    def open_logs(self, logs: Path) -> None:
        """What they say goes to files in `logs` from now on."""
        if self._logs is None:
            self._logs = logs
            for child in self.children.values():
                child.open_log(logs)

    # -- the end

    def end(self) -> None:
        """They are not needed any more: end them. May be called twice."""
        if self.over:
            return
        self.over = True
        if self._keeper is not None:
            self._keeper.close()
        for child in self.children.values():
            self._forget(child)
            child.end()
            child.close()
