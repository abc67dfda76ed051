"""A parameter server as a child of the launcher, and what it runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from shoal.core.errors import ShoalError
from shoal.launch.companion import Companion
from shoal.launch.failure import Account
from shoal.launch.job import Job
from shoal.launch.nursery import Nursery
from shoal.launch.parcel import pack, unpack
from shoal.launch.process import allow_stacks, name_process
from shoal.store.process import serve
from shoal.store.spec import ServerSpec

ENTRY = "shoal.launch.serving:main"
PLUGINS = ("shoal.strategies.torch_updater",)  # how the user's optimizer gets to the servers


class ServerChild(Companion):
    """One process of a server. Whether another takes its place is decided elsewhere: it is started once."""

    limit = 1

    def __init__(self, nursery: Nursery, spec: ServerSpec, copy: str = "") -> None:
        super().__init__(nursery)
        self.name = f"server-{spec.post}{copy}"
        self.spec = spec
        self.address = ""  # once it is ready
        self.problem = ""  # why it cannot begin
        self.account: Account | None = None  # why it was put out, where it was

    @property
    def post(self) -> int:
        return self.spec.post

    def fork(self, nursery: Nursery, channel_fd: int, log_fd: int) -> int:
        spec_fd = pack(json.dumps(self.spec.to_json()).encode())
        try:
            return nursery.fork(ENTRY, [channel_fd, spec_fd, log_fd])
        finally:
            os.close(spec_fd)

    def hear(self) -> bool:
        """Take in what it says; returns whether it has just become ready."""
        before = self.address
        for message in self.messages():
            if message["type"] == "failed":
                self.problem = str(message["message"])
            else:  # whoever hears this first may not have heard yet that it was forked
                self.address, self.pid = str(message["address"]), int(message["pid"])
        return bool(self.address) and not before

    def last_words(self) -> str:
        """The end of what it has written."""
        if self.log is None:
            return ""
        self.log.pump()
        return self.log.last_words()


def search_path_of(job: Job) -> tuple[str, ...]:
    """Where workers of this job find the user's modules: servers must find the same."""
    if job.script is not None and job.payload is None:
        return (str(Path(job.script).absolute().parent),)
    return tuple(path or str(Path.cwd()) for path in sys.path)


def main(fds: list[int]) -> NoReturn:
    """What the zygote calls in a new server: message socket, specification, log."""
    channel_fd, spec_fd, log_fd = fds
    channel = socket.socket(fileno=channel_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_stacks()
    for target in (1, 2):
        os.dup2(log_fd, target)
    os.close(log_fd)
    status = 0

    def tell(message: dict[str, str]) -> None:
        channel.sendall(json.dumps(message).encode() + b"\n")

    def log(line: str) -> None:
        os.write(2, f"{time.strftime('%H:%M:%S')} {line}\n".encode())

    try:
        spec = ServerSpec.from_json(json.loads(unpack(spec_fd)))
        name_process(f"shoal-srv-{spec.post}")
        _compute_alone()
        serve(spec, lambda address: tell({"type": "ready", "address": address, "pid": str(os.getpid())}), log)
    except ShoalError as error:
        tell({"type": "failed", "message": str(error)})
        status = error.exit_status
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
        status = 70
    os._exit(status)


def _compute_alone() -> None:
    """One thread: what a server computes waits for memory, and the cores are the workers'. With more threads it could
    not be forked for a snapshot, either."""
    if "torch" in sys.modules:  # the zygote has imported it
        sys.modules["torch"].set_num_threads(1)
