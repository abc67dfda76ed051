"""Fleets for tests: in this very process, where they start at once and can be broken on purpose, or as real ones."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.comm.bulk import BulkClient, Message
from shoal.comm.keys import ClientKeys, RunKeys
from shoal.core.errors import ShoalError
from shoal.store.description import FleetDescription, read_fleet
from shoal.store.keeper import FleetTerms, Keeper
from shoal.store.server import StoreServer
from shoal.store.spec import ServerSpec

PATIENCE_S = 60.0
CALM_S = 20.0  # a lease for tests that are not about it: the machine may be busy


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait for what must come; returns it."""
    until = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.005)
    return found


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class LocalFleet:
    """Servers that are threads of this process."""

    def __init__(
        self, servers: int = 2, replicas: int = 1, lease_s: float = CALM_S, hang_s: float | None = None
    ) -> None:
        self.keys = RunKeys.make()
        self.servers: dict[str, StoreServer] = {}
        self.notices: list[str] = []
        self.losses: list[str] = []
        self._lease_s = lease_s
        self._closing = False
        self._asleep: dict[str, threading.Event] = {}
        self.keeper: Keeper
        terms = FleetTerms(servers, replicas, lease_s=lease_s, patience_s=PATIENCE_S, hang_s=hang_s)
        self._made = threading.Event()
        self.keeper = Keeper(terms, self.keys.client(), self, on_notice=self.notices.append, on_lost=self.losses.append)
        self._made.set()

    def start(self, name: str, post: int, listen: str) -> None:
        def begin() -> None:
            self._made.wait()
            with contextlib.suppress(ShoalError):
                server = StoreServer(ServerSpec(name, post, self.keys, listen, self._lease_s), threaded=True)
                if self._closing:
                    server.close()
                    return
                self.servers[name] = server
                self.keeper.on_started(name, server.address, os.getpid())

        threading.Thread(target=begin, daemon=True).start()

    def kill(self, name: str, why: str = "") -> None:
        """Its connections end at once, and nothing of it is left."""
        self.wake(name)
        self.servers.pop(name).close()
        self.keeper.on_ended(name, "was killed")

    def pid(self, name: str) -> int:
        return os.getpid() if name in self.servers else 0

    def freeze(self, name: str) -> None:
        """Let its loop stand still."""
        event = self._asleep[name] = threading.Event()
        asleep = threading.Event()

        def sleep() -> None:
            asleep.set()
            event.wait(PATIENCE_S)

        self.servers[name].bulk.call(sleep)
        assert asleep.wait(PATIENCE_S)

    def wake(self, name: str) -> None:
        if name in self._asleep:
            self._asleep.pop(name).set()

    def wait_ready(self) -> FleetDescription:
        return self.keeper.wait_ready(PATIENCE_S)

    def primary(self, post: int) -> str:
        return self.keeper.primary_name(post)

    def close(self) -> None:
        self._closing = True
        for name in list(self._asleep):
            self.wake(name)
        self.keeper.close()
        for server in list(self.servers.values()):
            server.close()

    def __enter__(self) -> LocalFleet:
        self.wait_ready()
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()


_RUN = """
import json, sys
sys.argv[0] = "-m"  # no PyTorch is needed here
from pathlib import Path
from shoal.store.fleet import run_fleet
from shoal.store.terms import FleetTerms
given = json.loads(sys.argv[1])
run_fleet(Path(given.pop("directory")), FleetTerms(**given), say=lambda line: print(line, flush=True))
"""


@dataclass
class RealFleet:
    """`run_fleet` in a process of its own, with servers as its children."""

    directory: Path
    process: subprocess.Popen[str]

    def description(self) -> tuple[FleetDescription, ClientKeys]:
        return read_fleet(self.directory)

    def who(self) -> list[list[dict[str, Any]]]:
        """What every process of every server says of itself."""
        description, keys = self.description()
        return [[_who(address, keys) for address in addresses] for addresses in description.servers]

    def primary(self, post: int) -> tuple[str, int]:
        """Address and process id of whoever holds a server."""

        def find() -> tuple[str, int] | None:
            both = zip(self.description()[0].servers[post], self.who()[post], strict=True)
            return next(((address, one["pid"]) for address, one in both if one.get("serving")), None)

        found: tuple[str, int] = eventually(find, f"a primary of server {post}")
        return found

    def backed_up(self) -> bool:
        """Whether every server has a primary that has a backup."""
        return all(any(one.get("serving") and one["backup"] for one in ones) for ones in self.who())

    def end(self, number: int = signal.SIGTERM) -> str:
        """End it as a user would; returns what it has said."""
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return said


def _who(address: str, keys: ClientKeys) -> dict[str, Any]:
    try:
        client = BulkClient(address, keys, deadline_s=5.0)
    except ShoalError:
        return {}
    try:
        return client.request(Message({"k": "who"}), 1.0).head
    except ShoalError:  # frozen, or just gone
        return {}
    finally:
        client.close()


@contextlib.contextmanager
def real_fleet(directory: Path, **terms: Any) -> Iterator[RealFleet]:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, json.dumps({"directory": str(directory), **terms})],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    fleet = RealFleet(directory, process)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("use them with"):
                break
        else:
            raise AssertionError("the fleet did not start")
        yield fleet
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
