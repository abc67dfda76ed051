"""The coordinator as a child of the launcher, and what it runs."""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import replace
from typing import NoReturn

from shoal.core.errors import ShoalError
from shoal.elastic.process import CoordinatorSpec, serve
from shoal.launch.companion import Companion
from shoal.launch.nursery import Nursery
from shoal.launch.parcel import pack, unpack
from shoal.launch.process import name_process

ENTRY = "shoal.launch.coordinating:main"
RESTARTS = 20  # in a run


class CoordinatorChild(Companion):
    """The coordinator of a run. Started again it has the port that it had, and what it wrote down."""

    name = "coordinator"
    limit = RESTARTS + 1

    def __init__(self, nursery: Nursery, spec: CoordinatorSpec) -> None:
        super().__init__(nursery)
        self._spec = spec
        self.address = ""  # once it is ready

    def fork(self, nursery: Nursery, channel_fd: int, log_fd: int) -> int:
        spec_fd = pack(json.dumps(self._spec.to_json()).encode())
        try:
            return nursery.fork(ENTRY, [channel_fd, spec_fd, log_fd])
        finally:
            os.close(spec_fd)

    def hear(self) -> str | None:
        """Take in what it says; returns why it cannot begin, if it cannot. `address` is known once it is ready."""
        for message in self.messages():
            if message["type"] == "failed":
                return str(message["message"])
            self.address = str(message["address"])
            self._spec = replace(self._spec, port=int(self.address.rpartition(":")[2]))
        return None

    def keep_journal(self, path: str) -> None:
        """Where it finds what it wrote down, when it is started again."""
        self._spec = replace(self._spec, journal=path)


def main(fds: list[int]) -> NoReturn:
    """What the zygote calls in a new coordinator: message socket, specification, log."""
    channel_fd, spec_fd, log_fd = fds
    channel = socket.socket(fileno=channel_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_process("shoal-coord")
    for target in (1, 2):
        os.dup2(log_fd, target)
    status = 0

    def tell(message: dict[str, str]) -> None:
        channel.sendall(json.dumps(message).encode() + b"\n")

    try:
        spec = CoordinatorSpec.from_json(json.loads(unpack(spec_fd)))
        serve(spec, lambda address: tell({"type": "ready", "address": address}))
    except ShoalError as error:
        tell({"type": "failed", "message": str(error)})
        status = error.exit_status
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
        status = 70
    os._exit(status)
