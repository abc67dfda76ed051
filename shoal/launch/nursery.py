"""The launcher's end of a zygote and of the reaper of its children: start them, have them fork, hear what became of the
children."""

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
from shoal.launch.zygote_messages import (
    End,
    Exited,
    Fork,
    Forked,
    Message,
    Ready,
    Signal,
    ZygoteRestarted,
    receive,
    send,
)

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
from shoal.launch.reaper import main
main(channel, parent, preload)
"""
_SEND_S = 30.0


@dataclass(frozen=True)
class ReaperLost:
    """The parent of all children is gone, and they with it; or no zygote could be had."""

    code: int


NurseryEvent = Ready | Forked | Exited | ZygoteRestarted | ReaperLost


class Nursery:
    """One zygote, which is replaced if it dies, and the reaper that holds its children. The constructor returns while
    the zygote still imports.

    Use it from one thread, and end that thread only after `close`: the reaper dies with the thread that started it.
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
        self._send(Fork(self._keys, entry), fds)
        return self._keys

    def signal(self, key: int, number: int) -> None:
        """Send a signal to a child and what it has started; nothing happens if it is gone."""
        self._send(Signal(key, int(number)))

    def events(self) -> list[NurseryEvent]:
        """What has happened since the last call; does not wait."""
        events: list[NurseryEvent] = []
        while True:
            try:
                message, _ = receive(self._channel)
            except BlockingIOError:
                return events
            if message is None:
                return [*events, ReaperLost(self._wait(_SEND_S))]
            assert isinstance(message, Ready | Forked | Exited | ZygoteRestarted)
            events.append(message)
            self.ready |= isinstance(message, Ready)

    def close(self, deadline_s: float = 8.0) -> None:
        """End reaper, zygote and all children; returns when they are gone. May be called twice."""
        if self._channel.fileno() >= 0:
            if self._keys == 0:  # no children: nothing is lost by not waiting for its imports
                self._process.kill()
            with contextlib.suppress(ShoalError):
                self._send(End())
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

    def _send(self, request: Message, fds: Sequence[int] = ()) -> None:
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLOUT)
        while True:
            try:
                send(self._channel, request, fds)
                return
            except BlockingIOError:
                if not poll.poll(_SEND_S * 1000):
                    raise ShoalError(f"the process that starts workers took nothing in for {_SEND_S:.0f} s") from None
            except (BrokenPipeError, ConnectionResetError):
                return  # `events` says so
