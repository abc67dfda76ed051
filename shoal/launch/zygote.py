"""The zygote: a process that has imported torch, has run nothing, and forks a worker whenever it is asked
to.

It talks to its launcher over one inherited socket (SOCK_SEQPACKET: a message arrives whole, with its
descriptors): requests ``fork``, ``signal`` and ``end`` come in, ``ready``, ``forked`` and ``exited`` go
out, all JSON. It stays in one thread and computes nothing, because a process that has used OpenMP cannot be
forked. When the launcher is gone, so is the zygote, and with it everything that it forked.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from shoal.launch.process import adopt_orphans, die_with_parent, name_process

MESSAGE_BYTES = 65536
MAX_DESCRIPTORS = 16
# what a worker has started itself (loaders, a resource tracker) may clean up for so long after its end
LINGER_S = 1.0
_TICK_MS = 10
_NOT_FORKED = 71  # the status of a child that could not be had
_END_S = 5.0


@dataclass(frozen=True)
class _Child:
    key: int
    pid: int


class _Zygote:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._children: dict[int, _Child] = {}  # by pidfd
        self._lingering: dict[int, float] = {}  # process groups without their leader, and until when

    def serve(self) -> None:
        """Do what the launcher asks until it is gone."""
        while True:
            poll = select.poll()
            for fd in (self._channel.fileno(), *self._children):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(_TICK_MS if self._lingering else None):
                if fd in self._children:
                    self._reap(fd)
                elif not self._answer():
                    return
            self._sweep()

    def send(self, **message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # noticed by the next read
            self._channel.send(json.dumps(message).encode())

    def _answer(self) -> bool:
        flags = socket.MSG_CMSG_CLOEXEC
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, MAX_DESCRIPTORS, flags=flags)
        except ConnectionResetError:  # the launcher is gone, and has left words of ours unread
            return False
        request: dict[str, Any] = json.loads(data) if data else {"request": "end"}
        if request["request"] == "fork":
            self._fork(request["key"], request["entry"], fds)
        elif request["request"] == "signal":
            self._signal(request["key"], request["signal"])
        return bool(request["request"] != "end")

    def _fork(self, key: int, entry: str, fds: list[int]) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no memory or no room for another process: those that are there must not pay for it
            for fd in fds:
                os.close(fd)
            self.send(event="exited", key=key, code=_NOT_FORKED, at_s=time.monotonic())
            return
        if pid == 0:
            try:
                die_with_parent(parent)
                os.setsid()  # the terminal's Ctrl-C is for the launcher alone
                self._forget()
                module, _, function = entry.partition(":")
                getattr(importlib.import_module(module), function)(fds)
            finally:
                os._exit(70)  # an entry ends its process itself: to return is a fault of ours
        for fd in fds:
            os.close(fd)
        self._children[os.pidfd_open(pid)] = _Child(key, pid)
        self.send(event="forked", key=key, pid=pid)

    def _forget(self) -> None:
        """In a new child: let go of what belongs to the zygote."""
        self._channel.close()
        for fd in self._children:
            os.close(fd)
        signal.set_wakeup_fd(-1)

    def _signal(self, key: int, number: int) -> None:
        for child in self._children.values():
            if child.key == key:
                _signal_group(child.pid, number)

    def _reap(self, pidfd: int) -> None:
        child = self._children.pop(pidfd)
        _, status = os.waitpid(child.pid, 0)
        os.close(pidfd)
        self._lingering[child.pid] = time.monotonic() + LINGER_S
        self.send(event="exited", key=child.key, code=os.waitstatus_to_exitcode(status), at_s=time.monotonic())

    def _sweep(self) -> None:
        """Wait for what ended workers have left behind (it is ours now), and end it when its time is up.

        As long as one of the group lives its number cannot be given to others, so the signal meets only our
        own.
        """
        for group, until in list(self._lingering.items()):
            if time.monotonic() > until:
                _signal_group(group, signal.SIGKILL)
            try:
                while os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
                    pass
            except ChildProcessError:
                del self._lingering[group]

    def end(self) -> None:
        """Kill whatever is left, and wait for it."""
        for child in self._children.values():
            _signal_group(child.pid, signal.SIGKILL)
        for group in self._lingering:
            _signal_group(group, signal.SIGKILL)
        until = time.monotonic() + _END_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < until:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    time.sleep(_TICK_MS / 1000)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it has not made its group yet, or is gone
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def main(channel_fd: int, launcher_pid: int, preload: list[str]) -> None:
    """The life of a zygote. Never returns."""
    die_with_parent(launcher_pid)
    name_process("shoal-zygote")
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin = time.monotonic()
    for name in preload:
        # what cannot be imported fails again where it is needed, with an error that has its place
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that is shared with the zygote
    zygote = _Zygote(socket.socket(fileno=channel_fd))
    zygote.send(event="ready", seconds=time.monotonic() - begin)
    try:
        zygote.serve()
        zygote.end()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(70)
    os._exit(0)
