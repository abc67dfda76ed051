"""What ranks of these tests share. They import it, so it does not import pytest."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.comm.control import ControlPage
from shoal.comm.group import Group
from shoal.comm.select import make_group
from shoal.comm.shm import ShmGroup
from shoal.core.errors import CollectiveTimeout
from shoal.launch.session import Session

BACKENDS = ("shm", "gloo")


@dataclass(frozen=True)
class Failure:
    """How a rank failed: the name of its error, whom it missed, and the traceback."""

    kind: str
    missing: tuple[int, ...]
    account: str


def join(session: Session, backend: str, timeout_s: float = 30.0, number: int = 0) -> Group:
    """The group of all ranks; for shared memory also if that is only one."""
    world = session.world
    if backend == "shm":
        return ShmGroup(session.control, world.rank, world.size, timeout_s, number)
    return make_group(world, session.control, backend, session.rendezvous, timeout_s, number)


def attempt(session: Session, function: Callable[..., Any], *args: Any) -> Any:
    """The result of ``function(session, *args)``, or its `Failure`."""
    try:
        return function(session, *args)
    except Exception as error:
        missing = error.missing if isinstance(error, CollectiveTimeout) else ()
        return Failure(type(error).__name__, missing, traceback.format_exc())


def tell(session: Session) -> None:
    """Say to the test that this rank has come to where the test begins."""
    session.control.enter(session.world.rank, 1, "start")


def await_all(control: ControlPage, size: int, deadline_s: float = 60.0) -> None:
    """Wait until all ranks have told."""
    until = time.monotonic() + deadline_s
    while any(control.progress(rank)[0] == 0 for rank in range(size)):
        assert time.monotonic() < until, "a rank does not start"
        time.sleep(0.002)


def shared_memory_files() -> set[str]:
    return {entry.name for entry in Path("/dev/shm").iterdir()}
