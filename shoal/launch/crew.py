"""What an agent holds of one worker: its reports, its output, its process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.core.vitals import Pulse
from shoal.launch.job import Job, Post, Role, WorkerSpec
from shoal.launch.nursery import Nursery
from shoal.launch.output import WorkerLog
from shoal.launch.parcel import pack

ENTRY = "shoal.launch.worker:main"
Terminal = tuple[int, int]  # descriptors for standard output and error


class Hand:
    """One worker, from before its fork until after its end."""

    def __init__(self, number: int, key: str, seat: int, now_s: float) -> None:
        self.number, self.key, self.seat = number, key, seat
        self.child = 0  # by which the nursery names it
        self.pid = 0
        self.ended = False  # for the run: its process may be there for a moment yet
        self.code: int | None = None
        self.cause = ""
        self.stack = ""
        self.alive = True
        self.pulse = Pulse(now_s)
        self._received = bytearray()
        self.channel, self._theirs = socket.socketpair()
        self.channel.setblocking(False)
        # the output of the very first goes to the terminal from the start
        self.log = WorkerLog(f"worker-{number}", if_any=number == 0)

    def fork(
        self, nursery: Nursery, spec: WorkerSpec, control_fd: int, terminal: Terminal, payload_fd: int | None
    ) -> None:
        """Have the nursery fork this worker. `terminal` becomes its output when it is the first of a view."""
        spec_fd = pack(spec.to_json())
        try:
            fds = [control_fd, self._theirs.fileno(), spec_fd, self.log.theirs, *terminal]
            self.child = nursery.fork(ENTRY, fds if payload_fd is None else [*fds, payload_fd])
        finally:
            os.close(spec_fd)
        self._theirs.close()
        self.log.close_theirs()

    def messages(self) -> tuple[list[dict[str, Any]], bool]:
        """What has been reported since the last call, and whether more may come. Does not wait."""
        if self.channel.fileno() < 0:
            return [], False
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

    def close(self) -> None:
        self.channel.close()
        self._theirs.close()
        self.log.close()


def spec_of(
    job: Job, number: int, seat: int, post: Post | None, rendezvous: str, home: bool = True, role: Role = "worker"
) -> WorkerSpec:
    """What the worker with this number is told of a job."""
    return WorkerSpec(
        rank=number,
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
        seat=seat,
        home=home,
        role=role,
        post=replace(post, key=f"{post.agent}/{number}") if post is not None else None,
    )
