"""Ranks that are running: their results, their output, their ends, and how a test hurts them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.comm.control import ControlPage
from shoal.comm.rendezvous import make_rendezvous, remove_rendezvous
from shoal.launch.nursery import Nursery, ReaperLost
from shoal.launch.parcel import pack
from shoal.launch.zygote_messages import Exited, Forked

LENGTH = struct.Struct("<Q")  # in front of a result
ENTRY = "shoal.testing.ranks:rank_main"
_OUTPUT_SHOWN = 4000


@dataclass
class Rank:
    """One rank of a `RankRun`, and what became of it."""

    rank: int
    key: int
    result_fd: int
    output_fd: int
    pid: int | None = None
    code: int | None = None  # exit status, or minus the signal, once it has ended
    received: bytearray = field(default_factory=bytearray)

    @property
    def complete(self) -> bool:
        return len(self.received) >= 8 and len(self.received) >= 8 + LENGTH.unpack_from(self.received)[0]

    def outcome(self) -> tuple[bool, Any] | None:
        """Whether it succeeded, with its result or its traceback; None if it ended without saying."""
        # from a child of this very test, by a descriptor nobody else has
        return pickle.loads(bytes(self.received[8:])) if self.complete else None  # noqa: S301

    def output(self) -> str:
        """What it has written to standard output and error so far."""
        return os.pread(self.output_fd, os.fstat(self.output_fd).st_size, 0).decode(errors="replace")


class RankRun:
    """Ranks that are running. Leave the ``with`` block and they are gone."""

    def __init__(self, nursery: Nursery, size: int, payload: bytes, threads: int, seed: int) -> None:
        self._nursery = nursery
        self.control = ControlPage()
        self.rendezvous = make_rendezvous()
        self.ranks: list[Rank] = []
        payload_fd = pack(payload)
        for rank in range(size):
            self._fork(rank, size, payload_fd, threads, seed)
        os.close(payload_fd)

    def _fork(self, rank: int, size: int, payload_fd: int, threads: int, seed: int) -> None:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(write_end, True)
        output_fd = os.memfd_create(f"rank-{rank}")
        spec = {
            "rank": rank,
            "size": size,
            "threads": threads,
            "seed": seed,
            "rendezvous": self.rendezvous,
            "working_directory": str(Path.cwd()),
            "search_path": sys.path,
        }
        spec_fd = pack(json.dumps(spec).encode())
        key = self._nursery.fork(ENTRY, [self.control.fd, write_end, spec_fd, output_fd, payload_fd])
        self.ranks.append(Rank(rank, key, read_end, output_fd))
        os.close(write_end)
        os.close(spec_fd)

    def signal(self, rank: int, number: int) -> None:
        """Send a real signal to this rank's process alone."""
        self._until(lambda: self.ranks[rank].pid is not None, 10.0)
        pid = self.ranks[rank].pid
        assert pid is not None
        assert self.ranks[rank].code is None, f"rank {rank} has ended already"
        os.kill(pid, number)

    def wait(self, deadline_s: float = 60.0) -> list[Rank]:
        """Wait until every rank has ended, well or badly. Raises AssertionError after the deadline."""
        if not self._until(lambda: all(rank.code is not None for rank in self.ranks), deadline_s):
            raise AssertionError(f"not all ranks ended within {deadline_s} s\n{self.describe()}")
        return self.ranks

    def wait_for(self, rank: int, deadline_s: float = 60.0) -> Rank:
        """Wait until this rank has ended, well or badly."""
        if not self._until(lambda: self.ranks[rank].code is not None, deadline_s):
            raise AssertionError(f"rank {rank} did not end within {deadline_s} s\n{self.describe()}")
        return self.ranks[rank]

    def results(self, deadline_s: float = 60.0) -> list[Any]:
        """Every rank's result. Raises AssertionError with each failed rank's traceback."""
        self.wait(deadline_s)
        outcomes = [rank.outcome() for rank in self.ranks]
        if not all(outcome is not None and outcome[0] for outcome in outcomes):
            raise AssertionError(self.describe())
        return [outcome[1] for outcome in outcomes if outcome is not None]

    def describe(self) -> str:
        """Each rank's state, traceback and output."""
        return "\n".join(self._describe(rank) for rank in self.ranks)

    def _describe(self, rank: Rank) -> str:
        step, phase = self.control.progress(rank.rank)
        state = "is still running" if rank.code is None else f"ended with {rank.code}"
        outcome = rank.outcome()
        text = f"--- rank {rank.rank} {state}, last at step {step} ({phase})\n"
        if outcome is not None and not outcome[0]:
            text += str(outcome[1])
        output = rank.output()
        return text + (f"output:\n{output[-_OUTPUT_SHOWN:]}\n" if output else "")

    def _until(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        until = time.monotonic() + deadline_s
        while True:
            self._take_in()
            if condition():
                return True
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            poll = select.poll()
            poll.register(self._nursery.fileno(), select.POLLIN)
            for rank in self.ranks:
                if not rank.complete and rank.code is None:
                    poll.register(rank.result_fd, select.POLLIN)
            poll.poll(left_s * 1000)

    def _take_in(self) -> None:
        for event in self._nursery.events():
            assert not isinstance(event, ReaperLost), f"the parent of the ranks died: {event.code}"
            for rank in self.ranks:
                if isinstance(event, Forked) and event.key == rank.key:
                    rank.pid = event.pid
                elif isinstance(event, Exited) and event.key == rank.key:
                    rank.code = event.code
        for rank in self.ranks:
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(rank.result_fd, 1 << 20):
                    rank.received += chunk

    def close(self) -> None:
        """Kill what is left, wait for it, and give everything back. May be called twice."""
        if self.control.fd < 0:
            return
        for rank in self.ranks:
            if rank.code is None:
                self._nursery.signal(rank.key, signal.SIGKILL)
        gone = self._until(lambda: all(rank.code is not None for rank in self.ranks), 10.0)
        for rank in self.ranks:
            os.close(rank.result_fd)
            os.close(rank.output_fd)
        self.control.close()
        remove_rendezvous(self.rendezvous)
        assert gone, "a rank outlived SIGKILL"

    def __enter__(self) -> RankRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
