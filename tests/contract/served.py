"""Servers for tests of strategies that need them: started once, each training under a number of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.launch.serving import PLUGINS
from shoal.launch.session import Session
from shoal.store.access import FleetAccess
from shoal.store.description import read_fleet
from shoal.store.fleet import Fleet
from shoal.store.keeper import FleetTerms

_numbers = itertools.count(1)


@contextmanager
def servers(directory: Path, count: int = 2) -> Iterator[Path]:
    """Start `count` servers and yield where they are described."""
    with Fleet(directory, FleetTerms(count), plugins=PLUGINS) as fleet:
        fleet.wait_ready(120.0)
        yield directory


class Reach:
    """What every rank does before it begins: it learns where the servers are. Whenever it is sent to new ranks it has a
    new number, so that no training finds what another has left."""

    def __init__(self, directory: Path | str, number: int = 0) -> None:
        self._directory, self._number = str(directory), number

    def __reduce__(self) -> tuple[type[Reach], tuple[str, int]]:
        return Reach, (self._directory, next(_numbers))

    def __call__(self, session: Session) -> None:
        description, keys = read_fleet(self._directory)
        session.fleet = FleetAccess(lambda: description, keys, self._number)
