"""What the links of one client share: who it is, which generation of the state it knows, and a thread that looks after
everything that is not simply asked and answered."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from shoal.comm.keys import ClientKeys
from shoal.store.description import Encrypt, FleetDescription
from shoal.store.errors import StateLost

_CALM_S = 0.1
_SEARCHING_S = 0.02


class Watched(Protocol):
    """A link, as its session sees it."""

    def look(self, now_s: float) -> bool:
        """See what is due; returns whether it is looking for its server."""

    def fail_all(self, error: Exception) -> int:
        """End everything that is under way; returns how much that was."""

    def close(self) -> None:
        """Give its connections back."""


class Session:
    """One for each `KVStore`. `describe` says where the fleet is, and is asked again when servers cannot be found; it
    may take its time."""

    def __init__(
        self,
        describe: Callable[[], FleetDescription],
        keys: ClientKeys,
        name: str,
        encrypt: Encrypt = "auto",
        on_lost_state: Callable[[], None] = lambda: None,
    ) -> None:
        self.describe, self.keys, self.name, self.encrypt = describe, keys, name, encrypt
        self.client = os.urandom(8).hex()
        self.generation: int | None = None
        self.telling = threading.RLock()  # held while something new is asked for, and while everybody is told of a loss
        self._untold: StateLost | None = None
        self._on_lost_state = on_lost_state
        self._links: list[Watched] = []
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="shoal-kvstore", daemon=True)
        self._thread.start()

    def watch(self, link: Watched) -> None:
        """Look after this link from now on."""
        self._links = [*self._links, link]
        self.post(lambda: None)

    def post(self, function: Callable[[], None]) -> None:
        """Have `function` called in the session's thread. From any thread."""
        self._queue.put(function)

    def learn(self, generation: int) -> bool:
        """A server has said which generation it is of; returns whether that is (now) ours. In the session's thread."""
        if self.generation is None:
            self.generation = generation
        if generation <= self.generation:
            return generation == self.generation
        with self.telling:
            self.generation = generation
            self._on_lost_state()
            lost = StateLost(generation)
            told = [link.fail_all(lost) for link in self._links]
            self._untold = None if any(told) else lost
        return True

    def raise_untold(self) -> None:
        """Raise `StateLost` if nothing was under way when the servers went back. With `telling` held."""
        untold, self._untold = self._untold, None
        if untold is not None:
            raise untold

    def close(self) -> None:
        """End the thread and all links. May be called twice, from any thread but the session's own."""
        self._closing = True
        self._queue.put(None)
        self._thread.join()
        for link in self._links:
            link.close()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._closing:
            with contextlib.suppress(queue.Empty):
                job = self._queue.get(timeout=pause_s) if pause_s else self._queue.get_nowait()
                while job is not None:
                    job()
                    job = self._queue.get_nowait()
            now_s = time.monotonic()
            searching = [link.look(now_s) for link in self._links]
            pause_s = _SEARCHING_S if any(searching) else _CALM_S
