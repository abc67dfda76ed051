"""Real processes for the tests of this folder: forked from a server that has imported torch and run nothing."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import DupFd
from typing import Any

from shoal.comm.control import ControlPage
from shoal.comm.group import Group
from shoal.comm.rendezvous import make_rendezvous, remove_rendezvous
from shoal.comm.select import make_group
from shoal.core.errors import CollectiveTimeout
from shoal.core.world import World

DEADLINE_S = 60.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "shoal.comm.shm", "shoal.comm.torch_group"])


@dataclass(frozen=True)
class Failure:
    """How a rank failed: the name of its error, and what a test wants to know about it."""

    kind: str
    missing: tuple[int, ...]
    account: str


@dataclass
class Place:
    """What a rank's function is given: its place in the run, and a way to tell the test something."""

    world: World
    control: ControlPage
    backend: str
    rendezvous: str
    connection: Connection

    def group(self, timeout_s: float = 30.0, number: int = 0) -> Group:
        if self.backend == "shm":  # also for a size of one, which make_group would answer by a SoloGroup
            from shoal.comm.shm import ShmGroup

            return ShmGroup(self.control, self.world.rank, self.world.size, timeout_s, number)
        return make_group(self.world, self.control, self.backend, self.rendezvous, timeout_s, number)

    def tell(self, word: str) -> None:
        self.connection.send(("word", word))


def _main(function: Callable[..., Any], args: tuple[Any, ...], fd: Any, place: Place) -> None:
    import torch

    torch.set_num_threads(1)
    place.control = ControlPage(fd.detach())
    try:
        outcome: tuple[str, Any] = ("result", function(place, *args))
    except Exception as error:
        missing = error.missing if isinstance(error, CollectiveTimeout) else ()
        outcome = ("result", Failure(type(error).__name__, missing, traceback.format_exc()))
    place.connection.send(outcome)
    place.connection.close()


class Ranks:
    """`size` processes that run `function(place, *args)`. Leaving the context kills whatever still runs."""

    def __init__(self, backend: str, size: int, function: Callable[..., Any], *args: Any) -> None:
        self.control = ControlPage()
        self._rendezvous = make_rendezvous()
        self.processes, self._connections = [], []
        for rank in range(size):
            ours, theirs = _context.Pipe()
            place: Any = Place(World(rank, size), None, backend, self._rendezvous, theirs)  # type: ignore[arg-type]

            process = _Process(target=_main, args=(function, args, _Inherited(self.control.fd), place))
            process.start()
            theirs.close()
            self.processes.append(process)
            self._connections.append(ours)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()
        remove_rendezvous(self._rendezvous)
        self.control.close()

    def hear(self, rank: int) -> str:
        """The next word that `rank` tells."""
        assert self._connections[rank].poll(DEADLINE_S), f"rank {rank} tells nothing"
        kind, word = self._connections[rank].recv()
        assert kind == "word", word
        return str(word)

    def outcomes(self, without: tuple[int, ...] = ()) -> list[Any]:
        """What each rank's function returned, or its `Failure`, in rank order."""
        found: dict[int, Any] = {}
        awaited = {c: r for r, c in enumerate(self._connections) if r not in without}
        deadline = time.monotonic() + DEADLINE_S
        while awaited:
            ready = wait(list(awaited), timeout=deadline - time.monotonic())
            assert ready, f"ranks {sorted(awaited.values())} did not end in {DEADLINE_S} s"
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = awaited[connection]
                try:
                    kind, value = connection.recv()
                except EOFError:
                    raise AssertionError(f"rank {rank} died: {self.processes[rank].exitcode}") from None
                if kind == "result":
                    found[rank] = value
                    del awaited[connection]
        return [found[rank] for rank in sorted(found)]


class _Inherited:
    """Pickled while a process is started, it becomes a duplicate of the descriptor there."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> Any:
        return _same, (DupFd(self._fd),)


def _same(value: Any) -> Any:
    return value


_Process = _context.Process


def run(backend: str, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run `function(place, *args)` on all ranks; a failure of one fails the test with its traceback."""
    with Ranks(backend, size, function, *args) as ranks:
        outcomes = ranks.outcomes()
        for rank, outcome in enumerate(outcomes):
            assert not isinstance(outcome, Failure), f"rank {rank}:\n{outcome.account}"
        return outcomes


def shared_memory_files() -> set[str]:
    return set(os.listdir("/dev/shm"))  # noqa: PTH208 - names are what we compare
