"""Where the processes of a fleet run: a place for each replica of each post, and one process there after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from shoal.comm.bulk import BulkClient, Message
from shoal.comm.keys import ClientKeys
from shoal.store.terms import FleetTerms
from shoal.store.vigil import Vigil

_RESTART_S = 0.05  # doubled with every start that comes to nothing
_LONGEST_RESTART_S = 5.0
_LIVED_S = 10.0  # who lived so long did not end for having been started


@dataclass
class Place:
    """One of them, as the keeper sees it. `listen` is where the first process listens; later ones at its `address`."""

    post: int
    number: int
    listen: str
    name: str = ""  # of the process that is there
    address: str = ""
    pid: int = 0
    missed: bool = False  # it was said that nobody hears it
    condemned: str = ""  # why the process is being ended, where it is
    start_at_s: float | None = 0.0  # when the next process is due; None: there is one
    asked: bool = False  # a question is under way
    asked_s: float = float("-inf")
    asked_revision: int = -1
    client: BulkClient | None = None
    vigil: Vigil = field(default_factory=lambda: Vigil(0.0))
    _starts: int = 0
    _started_s: float = 0.0
    _failures: int = 0  # starts in a row that came to nothing

    def next_name(self, now_s: float) -> str:
        """A process is started here; returns its name."""
        self._starts += 1
        self._started_s, self.start_at_s = now_s, None
        self.vigil, self.condemned = Vigil(now_s), ""
        self.name = f"{self.post}{'ab'[self.number]}.{self._starts}"
        return self.name

    @property
    def why_ended(self) -> str:
        """Why the process was condemned, with what was seen of it."""
        return ", ".join(filter(None, (self.vigil.stopped, self.condemned)))

    def ended(self, now_s: float) -> None:
        """The process here has ended: the next one is due, later if this goes on and on."""
        self.disconnect()
        self.missed = False
        self._failures = self._failures + 1 if now_s - self._started_s < _LIVED_S else 0
        self.start_at_s = now_s + min(_RESTART_S * 2**self._failures, _LONGEST_RESTART_S)
        self.name = ""

    def connect(self, keys: ClientKeys, terms: FleetTerms) -> None:
        """Make a connection, where there is none."""
        if self.client is None:
            self.client = BulkClient(
                self.address, keys, name="keeper", server_name=self.name, deadline_s=None, encrypt=terms.encrypt
            )

    def ask(
        self,
        head: dict[str, Any],
        revision: int,
        now_s: float,
        answered: Callable[[str, BulkClient, Future[Message]], None],
    ) -> None:
        """Ask the process here; `answered` is called in the connection's thread."""
        assert self.client is not None, "nobody is connected"
        self.asked, self.asked_s, self.asked_revision = True, now_s, revision
        client, name = self.client, self.name
        client.submit(Message(head)).add_done_callback(lambda done: answered(name, client, done))

    def disconnect(self) -> None:
        self.asked, self.asked_revision = False, -1
        if self.client is not None:
            self.client.close()
            self.client = None


def places(terms: FleetTerms) -> list[Place]:
    """All places of a fleet, by post and number. With a given port, the others take those that follow it."""
    host = f"[{terms.host}]" if ":" in terms.host and not terms.host.startswith("[") else terms.host
    found = []
    for index in range(terms.servers * terms.replicas):
        post, number = divmod(index, terms.replicas)
        found.append(Place(post, number, f"{host}:{terms.port + index if terms.port else 0}"))
    return found
