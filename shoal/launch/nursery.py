"""The launcher's end of a zygote: start it, have it fork, hear what became of its children."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import shoal.launch
from shoal.core.errors import ShoalError
from shoal.launch.zygote import MESSAGE_BYTES

# torch._dynamo: the first optimizer that is built imports it, which takes as long as torch itself
PRELOAD = (
    "numpy.random",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "cloudpickle",
    "shoal.launch.worker",
    "shoal.launch.coordinating",
    "shoal.launch.serving",
    "shoal.elastic.coordinator",
    "shoal.elastic.store",
    "shoal.data.handwritten",
    "shoal.data.mapped",
    "shoal.data.streams",
    "shoal.data.tensors",
    "shoal.data.transforms",
    "shoal.data.libraries",
    "shoal.data.frames",
    "shoal.store.server",
    "shoal.strategies",
    "shoal.strategies.torch_updater",
    "shoal.train",
    "shoal.train.trainer",
)
_BOOTSTRAP = """
import json, sys
channel, parent, paths, preload = json.loads(sys.argv[1])
sys.argv = ["-m"]
sys.path += [path for path in paths if path not in sys.path]
from shoal.launch.zygote import main
main(channel, parent, preload)
"""
_SEND_S = 30.0


@dataclass(frozen=True)
class Ready:
    """The zygote has imported what it should, in so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Forked:
    key: int
    pid: int


@dataclass(frozen=True)
class Exited:
    """A child has ended: `code` is its exit status, or minus the signal that killed it. `at_s`:
    monotonic clock."""

    key: int
    code: int
    at_s: float


@dataclass(frozen=True)
class ZygoteLost:
    """The zygote itself is gone, and with it all children."""

    code: int


NurseryEvent = Ready | Forked | Exited | ZygoteLost


class Nursery:
    """One zygote. The constructor returns at once, while the zygote still imports.

    Use it from one thread, and end that thread only after `close`: the zygote dies with the thread that
    started it.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        self._keys = 0
        self.ready = False  # whether it forks at once
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        # `shoal` may be importable here by a path that a new interpreter does not have
        paths = [str(Path(shoal.launch.__path__[0]).parent.parent)]
        arguments = json.dumps([theirs.fileno(), os.getpid(), paths, list(preload)])
        try:
            self._process = subprocess.Popen(
                # -P: the working directory is not searched for modules, as it is not for a script
                [sys.executable, "-P", "-c", _BOOTSTRAP, arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Becomes readable when there are events."""
        return self._channel.fileno()

    def fork(self, entry: str, fds: Sequence[int]) -> int:
        """Fork a child that calls `entry` (``module:function``) with copies of `fds`, which the caller
        may close at once. Returns the key by which events name the child."""
        self._keys += 1
        self._send({"request": "fork", "key": self._keys, "entry": entry}, fds)
        return self._keys

    def signal(self, key: int, number: int) -> None:
        """Send a signal to a child and what it has started; nothing happens if it is gone."""
        self._send({"request": "signal", "key": key, "signal": int(number)}, ())

    def events(self) -> list[NurseryEvent]:
        """What has happened since the last call; does not wait."""
        events: list[NurseryEvent] = []
        while True:
            try:
                data = self._channel.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return events
            except ConnectionResetError:
                data = b""
            if not data:
                return [*events, ZygoteLost(self._wait(_SEND_S))]
            message = json.loads(data)
            kind = {"ready": Ready, "forked": Forked, "exited": Exited}[message.pop("event")]
            events.append(kind(**message))
            self.ready |= kind is Ready

    def close(self, deadline_s: float = 8.0) -> None:
        """End the zygote and all its children; returns when they are gone. May be called twice."""
        if self._channel.fileno() >= 0:
            if self._keys == 0:  # no children: nothing is lost by not waiting for its imports
                self._process.kill()
            with contextlib.suppress(ShoalError):
                self._send({"request": "end"}, ())
            self._wait(deadline_s)
            self._channel.close()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wait(self, deadline_s: float) -> int:
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(deadline_s)

    def _send(self, request: dict[str, object], fds: Sequence[int]) -> None:
        data = json.dumps(request).encode()
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLOUT)
        while True:
            try:
                socket.send_fds(self._channel, [data], list(fds))
                return
            except BlockingIOError:
                if not poll.poll(_SEND_S * 1000):
                    raise ShoalError(f"the process that starts workers took nothing in for {_SEND_S:.0f} s") from None
            except (BrokenPipeError, ConnectionResetError):
                return  # `events` says so
