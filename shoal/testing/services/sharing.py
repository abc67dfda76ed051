"""One service for all processes that work together, such as those of a run of tests: the first starts it, the last ends
it, even if they are killed.

Each user holds a shared lock on a file; a keeper, which is the service's parent, waits for the exclusive one, which it
gets when the last user is gone. The service dies with its keeper.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from shoal.testing.services.fetching import locked
from shoal.testing.services.running import READY_S, Running, Service
from shoal.testing.services.table import service

keepers: set[int] = set()  # those that this process has started; they outlive a test, for that is what they are for
_END_S = 30.0
_KEEPER = """import sys
words, sys.argv = sys.argv[1:], ["-m"]  # PyTorch is not needed here
from shoal.testing.services.sharing import keep
keep(*words)"""


@contextlib.contextmanager
def shared(kind: Service, folder: Path) -> Iterator[Running]:
    """The service that all who name this `folder` use, which is gone when the last of them is.

    Raises `ServiceUnavailable` if it cannot be had, `RuntimeError` if it does not start.
    """
    kind.fetch()
    folder.mkdir(parents=True, exist_ok=True)
    users = folder / f"{kind.name}.users"
    with users.open("a") as held:
        with locked(folder / f"{kind.name}.lock"):
            fcntl.flock(held, fcntl.LOCK_SH)  # a keeper that is ending is waited for
            running = Running.noted(folder / kind.name)
            if running is None or not running.alive:
                running = _start(kind, folder, users)
        try:
            yield running
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)
            if _unused(users):
                _see_off(running)


@contextlib.contextmanager
def shared_by_name(name: str, folder: Path) -> Iterator[Running]:
    with shared(service(name), folder) as running:
        yield running


def _unused(users: Path) -> bool:
    """Whether nobody uses it any more: no user, only perhaps the keeper, holds the file."""
    with users.open("a") as file:
        for lock in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            try:
                fcntl.flock(file, lock | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return lock == fcntl.LOCK_EX
    return True


def _see_off(running: Running) -> None:
    """Wait until a service that nobody uses has ended."""
    until = time.monotonic() + _END_S
    while Path(running.folder).exists() and time.monotonic() < until:
        time.sleep(0.02)


def _start(kind: Service, folder: Path, users: Path) -> Running:
    shutil.rmtree(folder / kind.name, ignore_errors=True)
    words = [sys.executable, "-c", _KEEPER, kind.name, str(folder / kind.name), str(users)]
    with (folder / f"{kind.name}.keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    keepers.add(keeper.pid)
    assert keeper.stdout is not None
    with keeper.stdout:
        said = keeper.stdout.readline()
    running = Running.noted(folder / kind.name)
    if said != b"ready\n" or running is None:
        keeper.wait(READY_S)
        raise RuntimeError(f"{kind.name} did not start:\n" + (folder / f"{kind.name}.keeper.log").read_text()[-4000:])
    return running


def keep(name: str, folder: str, users: str) -> NoReturn:
    """The keeper: starts the service, says so, and ends it when nobody holds `users` any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it is for those who use it
    kind, where = service(name), Path(folder)
    with Path(users).open("a") as file:
        kind.start(where, die_with_parent=True)
        print("ready", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
        kind.stop(where)
        shutil.rmtree(where, ignore_errors=True)
    sys.exit(0)
