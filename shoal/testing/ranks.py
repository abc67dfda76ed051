"""Real worker processes for tests: run a function on every rank, and see what each of them says.

    def test_sum(ranks: RankHarness) -> None:
        assert ranks.run(3, lambda session: session.world.rank) == [0, 1, 2]

The function is called with the rank's `Session` and the arguments. Functions, arguments and results are
sent by cloudpickle between processes of one test, so local functions will do. What a test module defines is
sent by value.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from shoal.comm.control import ControlPage
from shoal.core.world import World
from shoal.launch.nursery import PRELOAD, Nursery
from shoal.launch.parcel import unpack
from shoal.launch.session import Session, install
from shoal.launch.worker import attach_output, leave, settle_in
from shoal.testing.rank_run import LENGTH, Rank, RankRun

__all__ = ["Rank", "RankHarness", "RankRun"]

_READY_S = 120.0


class RankHarness:
    """One zygote, started at the first use; every run forks its ranks from it. One run at a time."""

    def __init__(self, preload: tuple[str, ...] = (*PRELOAD, "shoal.testing.ranks")) -> None:
        self._preload = preload
        self._nursery: Nursery | None = None
        self._run: RankRun | None = None

    @property
    def run_is_open(self) -> bool:
        """Whether the last run was not closed."""
        return self._run is not None and self._run.control.fd >= 0

    @property
    def pid(self) -> int | None:
        """The zygote's process id, if it has been started."""
        return self._nursery.pid if self._nursery is not None else None

    def start(self, size: int, function: Callable[..., Any], *args: Any, threads: int = 1, seed: int = 0) -> RankRun:
        """Start `size` ranks that call ``function(session, *args)``; use the result in a ``with``
        statement."""
        import cloudpickle

        nursery = self._ready()
        with _sent_by_value(sys.modules.get(function.__module__)):
            payload = cloudpickle.dumps((function, args))
        assert not self.run_is_open, "one run at a time: close the last one first"
        self._run = RankRun(nursery, size, payload, threads, seed)
        return self._run

    def _ready(self) -> Nursery:
        """The zygote, once it has imported what it should: the deadlines of runs are not spent on that."""
        if self._nursery is None:
            self._nursery = Nursery(self._preload)
        if not self._nursery.ready:
            poll = select.poll()
            poll.register(self._nursery.fileno(), select.POLLIN)
            poll.poll(_READY_S * 1000)
            self._nursery.events()
            assert self._nursery.ready, f"the zygote was not ready within {_READY_S:.0f} s"
        return self._nursery

    def run(
        self,
        size: int,
        function: Callable[..., Any],
        *args: Any,
        deadline_s: float = 60.0,
        threads: int = 1,
        seed: int = 0,
    ) -> list[Any]:
        """Call ``function(session, *args)`` on `size` ranks and return their results in rank order.

        Raises AssertionError with each failed rank's traceback; kills them all at the deadline.
        """
        with self.start(size, function, *args, threads=threads, seed=seed) as run:
            return run.results(deadline_s)

    def close_run(self) -> None:
        """Close the last run, if that is still open."""
        if self._run is not None:
            self._run.close()

    def close(self) -> None:
        """End the zygote and all ranks. May be called twice."""
        self.close_run()
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def __enter__(self) -> RankHarness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@contextlib.contextmanager
def _sent_by_value(module: ModuleType | None) -> Iterator[None]:
    """A test module need not be imported by the ranks, which would drag pytest in."""
    import cloudpickle

    name = module.__name__ if module is not None else "shoal"
    if name.partition(".")[0] in ("shoal", "torch", "builtins", "__main__"):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def rank_main(fds: list[int]) -> NoReturn:
    """What the zygote calls in a new rank."""
    import cloudpickle

    control_fd, result_fd, spec_fd, output_fd, payload_fd = fds
    spec = json.loads(unpack(spec_fd))
    status = 0
    try:
        attach_output(output_fd, os.dup(output_fd))
        settle_in(f"rank-{spec['rank']}", spec["threads"], spec["seed"], spec["working_directory"])
        session = Session(
            World(spec["rank"], spec["size"], seat=spec["rank"]), ControlPage(control_fd), rendezvous=spec["rendezvous"]
        )
        install(session)
        sys.path[:] = spec["search_path"]
        function, args = cloudpickle.loads(unpack(payload_fd))
        result = cloudpickle.dumps((True, function(session, *args)))
    except BaseException:
        result, status = cloudpickle.dumps((False, traceback.format_exc())), 1
    data = memoryview(LENGTH.pack(len(result)) + result)
    while data:
        data = data[os.write(result_fd, data) :]
    leave(status)
