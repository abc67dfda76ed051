"""What a launcher holds of one worker: its reports, its output, its process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from shoal.core.world import Member
from shoal.launch.job import Job, WorkerSpec
from shoal.launch.nursery import Nursery
from shoal.launch.output import Outlet, Relay, WorkerLog
from shoal.launch.parcel import pack

ENTRY = "shoal.launch.worker:main"


class Hand:
    """One worker, from before its fork until after its end."""

    def __init__(self, rank: int, relay: bool) -> None:
        self.rank = rank
        self.key = 0  # by which the nursery names it
        self.pid = 0
        self._received = bytearray()
        self.channel, self._theirs = socket.socketpair()
        self.channel.setblocking(False)
        self.log = WorkerLog(rank) if rank > 0 else None
        self.outlets: list[Outlet] = []
        if self.log is not None:
            self.outlets.append(self.log)
        elif relay:
            self.outlets += [Relay("stdout"), Relay("stderr")]

    def fork(self, nursery: Nursery, job: Job, rendezvous: str, control_fd: int, payload_fd: int | None) -> None:
        """Have the nursery fork this worker."""
        spec = WorkerSpec(
            rank=self.rank,
            size=job.workers,
            threads=job.threads_per_worker(),
            seed=job.seed,
            script=job.script,
            script_args=job.script_args,
            layers=job.layers,
            mode=job.mode,
            json_output=job.json_output,
            rendezvous=rendezvous,
            working_directory=str(Path.cwd()),
            search_path=tuple(path or str(Path.cwd()) for path in sys.path),
        )
        # the first worker has the terminal itself; where a summary is asked for on standard output, nothing else is
        terminal = [2, 2] if job.json_output and job.mode == "train" else [1, 2]
        writing = [outlet.theirs for outlet in self.outlets] or terminal
        spec_fd = pack(spec.to_json())
        try:
            fds = [control_fd, self._theirs.fileno(), spec_fd, writing[0], writing[-1]]
            self.key = nursery.fork(ENTRY, fds if payload_fd is None else [*fds, payload_fd])
        finally:
            os.close(spec_fd)
        self._theirs.close()
        for outlet in self.outlets:
            outlet.close_theirs()

    def messages(self) -> tuple[list[dict[str, Any]], bool]:
        """What has been reported since the last call, and whether more may come. Does not wait."""
        more = False
        with contextlib.suppress(ConnectionResetError):
            try:
                while data := self.channel.recv(1 << 16):
                    self._received += data
            except BlockingIOError:
                more = True
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        return [json.loads(line) for line in lines], more

    def member(self, host: str) -> Member:
        return Member("worker", self.rank, host, self.pid)

    def close(self) -> None:
        self.channel.close()
        self._theirs.close()
        for outlet in self.outlets:
            outlet.close()
