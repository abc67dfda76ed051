"""A process beside the workers: the coordinator, an evaluator, a parameter server."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from shoal.launch.nursery import Nursery
from shoal.launch.output import WorkerLog


class Companion(ABC):
    """One such process at a time. `fork` says how it is forked: it is given the process's end of `channel`, on which
    it sends lines of JSON, and its log. Its owner watches `channel` and `log`, and calls `on_exit`."""

    name: str
    limit: ClassVar[int]  # starts after which it is given up

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self.starts = 0
        self.child = 0  # by which the nursery names it; 0: it is not running
        self.pid = 0
        self.channel: socket.socket | None = None
        self.log: WorkerLog | None = None
        self._logs: Path | None = None
        self._received = bytearray()

    @abstractmethod
    def fork(self, nursery: Nursery, channel_fd: int, log_fd: int) -> int:
        """Have the nursery fork it; returns the nursery's key."""

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.close()
        self.starts += 1
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        self._received.clear()
        self.log = WorkerLog(self.name)
        if self._logs is not None:
            self.log.open(self._logs)
        try:
            self.child = self.fork(self._nursery, theirs.fileno(), self.log.theirs)
        finally:
            theirs.close()
            self.log.close_theirs()

    def open_log(self, logs: Path) -> None:
        """Write what it says to a file in `logs` from now on."""
        self._logs = logs
        if self.log is not None:
            self.log.open(logs)

    def messages(self) -> list[dict[str, Any]]:
        """What it has said since the last call. Does not wait."""
        if self.channel is None:
            return []
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self.channel.recv(1 << 16):
                self._received += data
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        return [json.loads(line) for line in lines]

    def on_exit(self) -> bool:
        """It has ended. Returns whether it may be started again."""
        self.child = 0
        return self.starts < self.limit

    def end(self) -> None:
        """Kill it, if it runs."""
        if self.child and self._nursery.fileno() >= 0:
            self._nursery.signal(self.child, signal.SIGKILL)

    def close(self) -> None:
        """Give its descriptors back. May be called twice."""
        if self.channel is not None:
            self.channel.close()
        if self.log is not None:
            self.log.pump()
            self.log.close()
        self.channel = self.log = None
