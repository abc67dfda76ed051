"""Servers of the store on this host: N processes (times replicas), started, watched, started again, and ended.

`run_fleet` is what `shoal kvstore` does. The directory it is given gets `fleet.json` (where the servers are),
`kvstore.key` (how to get in; only its owner can read it), `servers.log` and `snapshots/`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from shoal.comm.keys import RunKeys, write_key_file
from shoal.core.errors import ConfigError, ShoalError, UserError
from shoal.store.description import FLEET_FILE, KEY_FILE, FleetDescription
from shoal.store.keeper import Keeper
from shoal.store.process import SubprocessStarter
from shoal.store.spec import ServerSpec
from shoal.store.terms import FleetTerms

_LOCK_FILE = ".fleet.lock"
_READY_S = 120.0
_LOOK_S = 0.5
LOG_FILE = "servers.log"
_SNAPSHOT_S = 120.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def parse_listen(listen: str) -> tuple[str, int]:
    """Read "ADDRESS" or "ADDRESS:PORT"; raises `ConfigError` for what is neither."""
    host, colon, port = listen.strip().removeprefix("tcp://").rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):  # an IPv6 address without a port has colons, too
        host, port = listen.strip().removeprefix("tcp://"), "0"
    if (
        not host
        or not port.isdigit()
        or int(port) > 65535
        or any(character.isspace() or character == "/" for character in host)
    ):
        raise ConfigError(f"--listen {listen!r} is no address: write ADDRESS or ADDRESS:PORT, such as 127.0.0.1:7070")
    if host.strip("[]") in ("0.0.0.0", "::"):  # noqa: S104 - refused, not bound to
        raise ConfigError(
            f"--listen {listen!r} says nothing to clients: give the address by which they reach this host"
        )
    return host, int(port)


class Fleet:
    """Starts at once; use it in a ``with`` statement. `wait_ready` says when clients can come.

    `plugins`: modules that servers import first, with updaters of your own, found in `search_path` or where Python
    looks anyway. `notice` is told what happens, in words, and `lost` which server was lost, and why; both in a thread
    of the fleet's.
    """

    def __init__(
        self,
        directory: str | Path,
        terms: FleetTerms = FleetTerms(),  # noqa: B008 - a frozen value
        *,
        plugins: tuple[str, ...] = (),
        search_path: tuple[str, ...] = (),
        notice: Callable[[str], None] = lambda words: None,
        lost: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.directory = Path(directory)
        self.keys = RunKeys.make()
        self._lock = _take(self.directory)
        try:
            template = ServerSpec(
                "", 0, self.keys, lease_s=terms.lease_s, encrypt=terms.encrypt, plugins=plugins, search_path=search_path
            )
            self.starter = SubprocessStarter(template, self.directory / LOG_FILE)
            snapshots = self.directory / "snapshots" if terms.snapshot_s is not None else None
            self.keeper = Keeper(
                terms, self.keys.client(), self.starter,
                snapshots=snapshots, on_change=self._write, on_notice=notice, on_lost=lost,
            )  # fmt: skip
        except BaseException:
            os.close(self._lock)
            raise
        self.starter.watch(self.keeper)
        self._closed = False

    def _write(self, description: FleetDescription) -> None:
        write_key_file(self.directory / KEY_FILE, self.keys.client(), description.servers[0][0])
        description.write(self.directory)

    @property
    def description(self) -> FleetDescription | None:
        """Where the servers are; None until all have started once."""
        return self.keeper.description

    def wait_ready(self, deadline_s: float = _READY_S) -> FleetDescription:
        """Wait until all servers, and their replicas, are there. Raises `UserError` if they cannot start."""
        return self.keeper.wait_ready(deadline_s)

    def close(self) -> None:
        """End all servers, and take away what leads to them; snapshots and the log stay. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self.keeper.close()
        self.starter.close()
        for name in (FLEET_FILE, KEY_FILE):
            (self.directory / name).unlink(missing_ok=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def run_fleet(
    directory: str | Path,
    terms: FleetTerms,
    *,
    plugins: tuple[str, ...] = (),
    say: Callable[[str], None] = print,
    on_ready: Callable[[FleetDescription], None] = lambda description: None,
    deadline_s: float = _READY_S,
) -> None:
    """Keep a fleet until SIGINT or SIGTERM, then end it. `say` gets lines for the user, `on_ready` is told when clients
    can come. From the main thread.

    Raises `UserError` if the directory cannot be used, is in use, or the servers cannot listen."""
    with _heeding() as asked, Fleet(directory, terms, plugins=plugins, notice=say) as fleet:
        waiting = threading.Thread(
            target=_announce, args=(fleet, say, on_ready, deadline_s, asked), name="shoal-announce", daemon=True
        )
        waiting.start()
        asked.wait()
        waiting.join()
        if terms.snapshot_s is not None and fleet.keeper.ready:
            try:
                say(f"wrote {fleet.keeper.snapshot(_SNAPSHOT_S)}")
            except ShoalError as trouble:
                say(f"no last snapshot: {trouble}")
        error = getattr(waiting, "error", None)
        if error is not None:
            raise error


def _announce(
    fleet: Fleet,
    say: Callable[[str], None],
    on_ready: Callable[[FleetDescription], None],
    deadline_s: float,
    asked: threading.Event,
) -> None:
    """Say when the servers are ready, unless somebody wants to end before."""
    until_s = time.monotonic() + deadline_s
    while not asked.is_set():
        try:
            description = fleet.wait_ready(_LOOK_S)
        except UserError as error:
            threading.current_thread().error = error  # type: ignore[attr-defined]  # handed to whoever joins
            asked.set()
        except ShoalError:  # not yet
            if time.monotonic() > until_s:
                say(f"the servers are not ready after {deadline_s:.0f} s: see {fleet.directory / LOG_FILE}")
                until_s = float("inf")
        else:
            places = ", ".join(" and ".join(one) for one in description.servers)
            say(f"{len(description.servers)} servers at {places}")
            say(f"use them with shoal.KVStore({str(fleet.directory)!r}); end them with Ctrl-C")
            on_ready(description)
            return


@contextlib.contextmanager
def _heeding() -> Iterator[threading.Event]:
    """An event that is set by the signals that end a program. One that was ignored before stays ignored, as SIGINT is
    for what a script starts in the background."""
    asked = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()

    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heeded}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _take(directory: Path) -> int:
    """Make the directory and lock it for this fleet."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"the directory {directory} cannot be used for a store: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(f"the directory {directory} is used by another `shoal kvstore`: give another one") from None
    return descriptor
