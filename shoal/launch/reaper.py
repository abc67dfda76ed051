"""The reaper: the small process that is the parent of all that a launcher forks, and of the zygote they come from.

It has imported nothing large and does nothing but pass requests on, wait for children, and start another zygote where
one has died; so a worker never dies with the process that it is a copy of. One spare child of the zygote is kept ready:
a worker is there without waiting for a fork. When the launcher is gone, so is the reaper, and with it everything else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.launch import zygote
from shoal.launch.process import adopt_orphans, die_with_parent, name_process
from shoal.launch.zygote_messages import (
    MAX_DESCRIPTORS,
    End,
    Exited,
    Fork,
    Forked,
    Here,
    Message,
    Ready,
    Signal,
    Spares,
    ZygoteRestarted,
    receive,
    send,
)

# what a child has started itself (loaders, a resource tracker) may clean up for so long after its end
LINGER_S = 1.0
SPARES = 1  # kept ready
# what there is as long as children can be had, by the names that processes have
STANDING = ("shoal-reaper", "shoal-zygote", "shoal-spare")
MAX_STILLBORN = 3  # zygotes in a row that end before they are ready; then it is given up
_TICK_MS = 10
_NOT_FORKED = 71  # the status of a child that could not be had
_END_S = 5.0


@dataclass(frozen=True)
class _Child:
    key: int
    pid: int


@dataclass
class _Zygote:
    pid: int
    pidfd: int
    channel: socket.socket
    ready: bool = False


class Reaper:
    """Serves one launcher over `channel` from one thread. `serve` returns when the launcher is gone or says so, or when
    no zygote can be had: then it returns the last one's status, which is not zero."""

    def __init__(self, channel: socket.socket, preload: Sequence[str]) -> None:
        self._launcher, self._preload = channel, preload
        self._wanted: list[tuple[Fork, list[int]]] = []  # not begun yet
        self._unborn: list[socket.socket] = []  # to spares that the zygote was asked for
        self._spares: list[tuple[socket.socket, int]] = []  # with their pids
        self._children: dict[int, _Child] = {}  # by pidfd
        self._lingering: dict[int, float] = {}  # process groups without their leader, and until when
        self._said_ready = False
        self._restarts = self._stillborn = 0
        self._zygote = self._start_zygote()

    def serve(self) -> int:
        """Do what the launcher asks until it is gone."""
        while True:
            current = self._zygote
            poll = select.poll()
            channels = (self._launcher, current.channel, *self._unborn)
            for fd in (*(channel.fileno() for channel in channels), current.pidfd, *self._children):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(_TICK_MS if self._lingering else None):
                if fd in self._children:
                    self._reap(fd)
                elif fd == self._launcher.fileno():
                    if not self._answer():
                        return 0
                elif current is self._zygote:  # what an earlier one has to say no longer counts
                    status = self._hear_zygote(fd)
                    if status:
                        return status
            self._sweep()
            self._bury_strangers()

    # -- the launcher

    def _say(self, message: Message) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # noticed by the next read
            send(self._launcher, message)

    def _answer(self) -> bool:
        request, fds = receive(self._launcher)
        if isinstance(request, Fork):
            self._wanted.append((request, fds))
            self._hand_out()
        elif isinstance(request, Signal):
            self._signal(request)
        return request is not None and not isinstance(request, End)

    def _signal(self, request: Signal) -> None:
        for child in self._children.values():
            if child.key == request.key:
                _signal_group(child.pid, request.number)
        for wanted in [one for one in self._wanted if one[0].key == request.key]:
            if request.number in (signal.SIGKILL, signal.SIGTERM):
                self._refuse(wanted, -request.number)

    def _refuse(self, wanted: tuple[Fork, list[int]], code: int) -> None:
        self._wanted.remove(wanted)
        for fd in wanted[1]:
            os.close(fd)
        self._say(Exited(wanted[0].key, code, time.monotonic()))

    # -- the zygote and its spares

    def _start_zygote(self) -> _Zygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                die_with_parent(me)
                ours.close()
                self._forget()
                zygote.run(theirs, me, self._preload)
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        theirs.close()
        return _Zygote(pid, os.pidfd_open(pid), ours)

    def _forget(self) -> None:
        """In a new zygote: let go of what belongs to the reaper."""
        for one in (self._launcher, *self._unborn, *(channel for channel, _ in self._spares)):
            one.close()
        for fd in (*self._children, *(fd for _, fds in self._wanted for fd in fds)):
            os.close(fd)

    def _hear_zygote(self, fd: int) -> int:
        """Something is to be heard of the zygote or a spare of it; returns a status that is not zero to give up."""
        current = self._zygote
        if fd == current.pidfd:
            return self._replace_zygote()
        if fd == current.channel.fileno():
            message, _ = receive(current.channel)
            if isinstance(message, Ready):
                current.ready, self._stillborn = True, 0
                if not self._said_ready:
                    self._said_ready = True
                    self._say(message)
                self._hand_out()
            elif isinstance(message, Spares):
                for _ in range(min(message.failed, len(self._wanted))):
                    self._refuse(self._wanted[0], _NOT_FORKED)
            return 0
        for unborn in [one for one in self._unborn if one.fileno() == fd]:
            self._unborn.remove(unborn)
            here, _ = receive(unborn)
            if isinstance(here, Here):
                self._spares.append((unborn, here.pid))
            else:
                unborn.close()  # it could not be forked, or was killed at once
            self._hand_out()
        return 0

    def _replace_zygote(self) -> int:
        last = self._zygote
        _, status = os.waitpid(last.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._lingering[last.pid] = time.monotonic()  # who was about to be forked
        for one in (last.channel, *self._unborn):  # whoever is at the other end ends too
            one.close()
        self._unborn.clear()
        os.close(last.pidfd)
        self._stillborn += not last.ready
        if self._stillborn >= MAX_STILLBORN:
            return code or 70
        self._restarts += 1
        self._zygote = self._start_zygote()
        self._say(ZygoteRestarted(code, self._restarts))
        return 0

    def _hand_out(self) -> None:
        """Give those who are ready what there is to do, and ask for as many as are missing then."""
        while self._wanted and self._spares:
            request, fds = self._wanted.pop(0)
            channel, pid = self._spares.pop(0)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # killed meanwhile: its end says so
                send(channel, request, fds)
            channel.close()
            for fd in fds:
                os.close(fd)
            self._children[os.pidfd_open(pid)] = _Child(request.key, pid)
            self._say(Forked(request.key, pid))
        current = self._zygote
        missing = len(self._wanted) + SPARES - len(self._spares) - len(self._unborn)
        if missing <= 0 or not current.ready:
            return
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(min(missing, MAX_DESCRIPTORS))]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is heard of next
            send(current.channel, Spares(), [theirs.fileno() for _, theirs in pairs])
        for ours, theirs in pairs:
            theirs.close()
            self._unborn.append(ours)

    # -- children

    def _reap(self, pidfd: int) -> None:
        child = self._children.pop(pidfd)
        _, status = os.waitpid(child.pid, 0)
        os.close(pidfd)
        self._lingering[child.pid] = time.monotonic() + LINGER_S
        self._say(Exited(child.key, os.waitstatus_to_exitcode(status), time.monotonic()))

    def _sweep(self) -> None:
        """Wait for what ended children have left behind (it is ours now), and end it when its time is up.

        As long as one of the group lives its number cannot be given to others, so the signal meets only our own.
        """
        for group, until in list(self._lingering.items()):
            try:
                while os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
                    pass
            except ChildProcessError:
                del self._lingering[group]
                continue
            if time.monotonic() > until:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)

    def _bury_strangers(self) -> None:
        """Wait for children that nobody asks for: those that a zygote which was killed had half forked."""
        known = {self._zygote.pid, *(child.pid for child in self._children.values()), *(pid for _, pid in self._spares)}
        look = os.WEXITED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, look | os.WNOWAIT)) is not None and ended.si_pid not in known:
                os.waitid(os.P_PID, ended.si_pid, look)

    def end(self) -> None:
        """Kill whatever is left, and wait for it."""
        spares = (pid for _, pid in self._spares)
        for group in (*(child.pid for child in self._children.values()), *self._lingering, *spares, self._zygote.pid):
            _signal_group(group, signal.SIGKILL)
        for unborn in self._unborn:
            unborn.close()
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
    """The life of a reaper. Never returns."""
    die_with_parent(launcher_pid)
    name_process("shoal-reaper")
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = 70
    try:
        reaper = Reaper(socket.socket(fileno=channel_fd), preload)
        status = reaper.serve()
        reaper.end()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(status)
