"""Making a snapshot of a whole fleet while it serves, step by step.

A transaction is committed on the first server, which decides, and then on the others. The snapshot must not hold one
that another server has committed and the first has not, nor one that the first has committed and another has not even
staged. So: hold changes on the first server; cut the others; cut the first; let it go on. What the first has committed
by then was staged everywhere before the hold began, and is committed on the others or can be, by `settle`; what another
has committed, the first had committed before the hold. A cut is a fork and takes milliseconds; the children write.

A plain push over several servers is no transaction: a snapshot may have it on one and not on another.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.comm.bulk import BulkClient, Message
from shoal.core.errors import ShoalError, UserError
from shoal.store.snapshot import complete, directory_of, next_number, prune

if TYPE_CHECKING:
    from shoal.store.keeper import Keeper

_HOLD_S = 5.0
_STEP_S = 10.0
_WRITE_S = 600.0


class Snapshotting:
    """When, and how. `look`, `heard` and `outcome` are called in the keeper's thread, `make` in any other."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._due_s: float | None = None
        self._thread: threading.Thread | None = None
        self._one_at_a_time = threading.Lock()
        self._heard = threading.Condition()
        self._written: dict[tuple[str, str], bool] = {}  # (process, snapshot) -> whether it went well
        self._wanted: dict[str, int] = {}  # by process, what clients have asked for
        self._served: dict[str, tuple[int, str]] = {}
        self._closing = False

    def look(self, now_s: float) -> None:
        """Begin one in a thread of its own if it is time, or a client has asked for one."""
        if self._thread is not None and self._thread.is_alive():
            return
        every_s = self._keeper.terms.snapshot_s
        if self._keeper.snapshots is not None and every_s is not None and self._due_s is None:
            self._due_s = now_s + every_s
        first = self._keeper.primary_name(0)
        wanted = self._wanted.get(first, 0)
        asked = wanted > self._served.get(first, (0, ""))[0]
        if asked or (self._due_s is not None and now_s >= self._due_s):
            self._due_s = None
            self._thread = threading.Thread(
                target=self._in_turn, args=(first, wanted), name="shoal-snapshot", daemon=True
            )
            self._thread.start()

    def heard(self, name: str, head: dict[str, Any]) -> None:
        """What a process has said of its snapshots."""
        with self._heard:
            self._wanted[name] = int(head["wanted"])
            for number, done in head["written"].items():
                self._written[name, number] = bool(done)
            self._heard.notify_all()

    def outcome(self, name: str) -> tuple[int, str]:
        """How many of the wishes told by a process have been seen to, and what came of the last one."""
        return self._served.get(name, (0, ""))

    def close(self) -> None:
        self._closing = True
        with self._heard:
            self._heard.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _in_turn(self, first: str, wanted: int) -> None:
        try:
            outcome = str(self.make(_WRITE_S))
        except Exception as error:
            outcome = f"!{error}"
            if not self._closing:
                self._keeper._on_notice(f"no snapshot could be made: {error}")
        self._served[first] = (wanted, outcome)

    def make(self, deadline_s: float) -> Path:
        """Make one. Raises `UserError` if the fleet keeps none, `ShoalError` for what went wrong."""
        root = self._keeper.snapshots
        if root is None:
            raise UserError("this store keeps no snapshots: start it with a directory for them")
        with self._one_at_a_time:
            number = next_number(root)
            directory = directory_of(root, number)
            directory.mkdir()
            try:
                self._make(directory, number, time.monotonic() + deadline_s)
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
            prune(root)
            return directory

    def _make(self, directory: Path, number: int, until_s: float) -> None:
        keeper = self._keeper
        servers = keeper.terms.servers
        terms = keeper.terms_of_posts
        names = [keeper.primary_name(post) for post in range(servers)]
        clients = [self._client(post) for post in range(servers)]
        cut = {"k": "cut", "number": number, "directory": str(directory.resolve())}
        ticket = clients[0].request(Message({"k": "hold", "seconds": _HOLD_S}), _STEP_S).head["ticket"]
        try:
            cuts = [client.submit(Message(cut)) for client in clients[1:]]
            wait(cuts, _STEP_S)
            for one in cuts:
                one.result(0)
            clients[0].request(Message({**cut, "ticket": ticket}), _STEP_S)
        finally:
            with contextlib.suppress(Exception):  # the hold ends by itself
                clients[0].submit(Message({"k": "go on", "ticket": ticket}))
        with self._heard:
            keys = [(name, str(number)) for name in names]
            while not all(key in self._written for key in keys):
                if keeper.terms_of_posts != terms:
                    raise ShoalError("a server was replaced meanwhile")
                if self._closing or time.monotonic() > until_s:
                    raise ShoalError("it was not written in time")
                self._heard.wait(0.1)
            failed = [name for name, _ in keys if not self._written[name, str(number)]]
            for key in keys:
                del self._written[key]
        if failed:
            raise ShoalError(f"{', '.join(failed)} could not write it to {directory}: see the log")
        complete(directory, number, servers, {})

    def _client(self, post: int) -> BulkClient:
        client = self._keeper.primary(post)
        if client is None:
            raise ShoalError(f"server {post} cannot be reached")
        return client
