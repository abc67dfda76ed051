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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
    Tried,
    ZygoteRestarted,
    receive,
    send,
)

# what a child has started itself (loaders, a resource tracker) may clean up for so long after its end
LINGER_S = 1.0
SPARES = 1  # kept ready
# what there is as long as children can be had, by the names that processes have
STANDING = ("shoal-reaper", "shoal-zygote", "shoal-spare")
MAX_STILLBORN = 3  # zygotes in a row that end before the first was ready; then it is given up
_CALM_S = 0.15  # after a spare was taken: to fork another would take time from those who go on, and from itself
_PAUSE_S = 1.0  # after a spare or a zygote that could not be had; with every zygote more it is doubled, up to
_LONGEST_PAUSE_S = 30.0
_TICK_MS = 10
_NOT_FORKED = 71  # the status of a child that could not be had
_END_S = 5.0


@dataclass(frozen=True)
class _Child:
    key: int
    pid: int


@dataclass(frozen=True)
class _Spare:
    channel: socket.socket
    pid: int


@dataclass
class _Zygote:
    pid: int
    pidfd: int
    channel: socket.socket
    ready: bool = False


class Reaper:
    """Serves one launcher over `channel` from one thread. Children never end because others cannot be had: only where
    there was never a zygote it is given up."""

    def __init__(self, channel: socket.socket, preload: Sequence[str]) -> None:
        self._launcher, self._preload = channel, preload
        self._wanted: list[tuple[Fork, list[int]]] = []  # not begun yet
        self._unborn: list[socket.socket] = []  # to spares that the zygote was asked for
        self._asked: int | None = None  # the zygote has yet to answer; so many of what was asked for nobody waits for
        self._failed = 0  # of what was asked for
        self._spares: list[_Spare] = []
        self._children: dict[int, _Child] = {}  # by pidfd
        self._lingering: dict[int, float] = {}  # process groups without their leader, and until when
        self._zygote: _Zygote | None = None
        self._said_ready = False
        self._restarts = self._stillborn = 0
        self._start_s = self._spare_s = 0.0  # no zygote, and no mere spare, is asked for before
        self._status: int | None = None  # once it is over

    def serve(self) -> int:
        """Do what the launcher asks until it is gone or says so: returns 0. Where no zygote can be had from the
        beginning: returns the last one's status."""
        while self._status is None:
            if self._zygote is None and time.monotonic() >= self._start_s:
                self._start_zygote()
            heard = self._listeners()
            poll = select.poll()
            for fd in heard:
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(self._patience_ms()):
                heard[fd]()
            self._hand_out()
            self._sweep()
            self._bury_strangers()
        return self._status

    def _listeners(self) -> dict[int, Callable[[], None]]:
        """Whom to call when a descriptor is readable. Each looks whether it is still concerned: one that was called
        before it may have changed that."""
        heard: dict[int, Callable[[], None]] = {self._launcher.fileno(): self._answer}
        if self._zygote is not None:
            heard[self._zygote.channel.fileno()] = partial(self._hear_zygote, self._zygote)
            heard[self._zygote.pidfd] = partial(self._lose_zygote, self._zygote)
        heard |= {channel.fileno(): partial(self._hear_unborn, channel) for channel in self._unborn}
        heard |= {spare.channel.fileno(): partial(self._lose_spare, spare) for spare in self._spares}
        return heard | {pidfd: partial(self._reap, pidfd) for pidfd in self._children}

    def _patience_ms(self) -> int | None:
        """Until something is to be done that nobody asks for: another look, another zygote, another spare."""
        if self._lingering:
            return _TICK_MS
        due_s = self._start_s if self._zygote is None else self._spare_s
        left_ms = int((due_s - time.monotonic()) * 1000) + 1
        return max(0, left_ms) if self._zygote is None or self._lacks_a_spare() else None

    def _lacks_a_spare(self) -> bool:
        """Whether the zygote will be asked for one, when it is time."""
        ready = self._zygote is not None and self._zygote.ready and self._asked is None
        return ready and len(self._spares) + len(self._unborn) < SPARES

    # -- the launcher

    def _say(self, message: Message) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # noticed by the next read
            send(self._launcher, message)

    def _answer(self) -> None:
        request, fds = receive(self._launcher)
        if isinstance(request, Fork):
            self._wanted.append((request, fds))
        elif isinstance(request, Signal):
            self._signal(request)
        elif request is None or isinstance(request, End):
            self._status = 0

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

    # -- the zygote

    def _start_zygote(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no memory or no room for another process
            ours.close()
            theirs.close()
            self._go_without(_NOT_FORKED)
            return
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
        self._zygote = _Zygote(pid, os.pidfd_open(pid), ours)

    def _forget(self) -> None:
        """In a new zygote: let go of what belongs to the reaper."""
        for one in (self._launcher, *self._unborn, *(spare.channel for spare in self._spares)):
            one.close()
        for fd in (*self._children, *(fd for _, fds in self._wanted for fd in fds)):
            os.close(fd)

    def _hear_zygote(self, current: _Zygote) -> None:
        message = receive(current.channel)[0] if current is self._zygote else None
        if isinstance(message, Ready):
            current.ready, self._stillborn = True, 0
            if not self._said_ready:
                self._said_ready = True
                self._say(message)
        elif isinstance(message, Tried) and self._asked is not None:  # else it has ended, which its descriptor says
            for channel in [one for one in self._unborn if _is_closed(one)]:
                self._hear_unborn(channel)
            for wanted in self._wanted[: max(0, self._failed - self._asked)]:
                self._refuse(wanted, _NOT_FORKED)
            self._asked, self._failed = None, 0

    def _lose_zygote(self, last: _Zygote) -> None:
        _, status = os.waitpid(last.pid, 0)
        self._lingering[last.pid] = time.monotonic()  # who was about to be forked
        for one in (last.channel, *self._unborn):  # whoever is at the other end ends too
            one.close()
        self._unborn.clear()
        self._asked, self._failed = None, 0
        os.close(last.pidfd)
        self._zygote = None
        self._go_without(os.waitstatus_to_exitcode(status), last.ready)

    def _go_without(self, code: int, was_ready: bool = False) -> None:
        """A zygote has ended or could not be had. The next is started at once; after several in vain nobody who is
        wanted waits for it, and it is tried now and then."""
        self._stillborn += not was_ready
        in_vain = self._stillborn >= MAX_STILLBORN
        if not self._said_ready:
            if in_vain:
                self._status = code if code > 0 else 128 - code  # as a shell says it
            return
        self._restarts += 1
        self._say(ZygoteRestarted(code, self._restarts))
        if in_vain:
            pause_s = _PAUSE_S * 2 ** min(self._stillborn - MAX_STILLBORN, 5)
            self._start_s = time.monotonic() + min(_LONGEST_PAUSE_S, pause_s)
            for wanted in list(self._wanted):
                self._refuse(wanted, _NOT_FORKED)

    # -- its spares

    def _hear_unborn(self, channel: socket.socket) -> None:
        if channel not in self._unborn:
            return
        self._unborn.remove(channel)
        here, _ = receive(channel)
        if isinstance(here, Here):
            self._spares.append(_Spare(channel, here.pid))
        else:  # it could not be forked, or was killed at once
            channel.close()
            self._spare_s = time.monotonic() + _PAUSE_S
            self._failed += self._asked is not None

    def _lose_spare(self, spare: _Spare) -> None:
        if spare in self._spares:  # killed before there was anything to do
            self._spares.remove(spare)
            spare.channel.close()
            self._lingering[spare.pid] = time.monotonic()
            self._spare_s = time.monotonic() + _PAUSE_S

    def _hand_out(self) -> None:
        """Give those who are ready what there is to do, and ask for as many as are missing then."""
        while self._wanted and self._spares:
            (request, fds), spare = self._wanted.pop(0), self._spares.pop(0)
            self._children[os.pidfd_open(spare.pid)] = _Child(request.key, spare.pid)
            self._say(Forked(request.key, spare.pid))  # before it can say anything itself
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # killed meanwhile: its end says so
                send(spare.channel, request, fds)
            spare.channel.close()
            self._spare_s = max(self._spare_s, time.monotonic() + _CALM_S)
            for fd in fds:
                os.close(fd)
        if self._asked is not None or self._zygote is None or not self._zygote.ready:
            return
        kept = SPARES if time.monotonic() >= self._spare_s else 0
        missing = len(self._wanted) + kept - len(self._spares) - len(self._unborn)
        if missing <= 0:
            return
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(min(missing, MAX_DESCRIPTORS))]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is heard of next
            send(self._zygote.channel, Spares(), [theirs.fileno() for _, theirs in pairs])
        for ours, theirs in pairs:
            theirs.close()
            self._unborn.append(ours)
        self._asked = max(0, len(pairs) - len(self._wanted))

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
        """Wait for children that nobody asks for: those that a zygote which was killed had half forked. Not while
        somebody may be among them who has yet to say who it is."""
        if self._unborn:
            return
        known, look = self._pids(), os.WEXITED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, look | os.WNOWAIT)) is not None and ended.si_pid not in known:
                os.waitid(os.P_PID, ended.si_pid, look)

    def _pids(self) -> set[int]:
        """Those whom it will wait for by itself: until then their numbers are theirs."""
        pids = {child.pid for child in self._children.values()} | {spare.pid for spare in self._spares}
        return pids | ({self._zygote.pid} if self._zygote is not None else set())

    def end(self) -> None:
        """Kill whatever is left, and wait for it."""
        for pid in self._pids():
            _signal_group(pid, signal.SIGKILL)
        for group in self._lingering:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for unborn in self._unborn:
            unborn.close()
        until = time.monotonic() + _END_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < until:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    time.sleep(_TICK_MS / 1000)


def _is_closed(channel: socket.socket) -> bool:
    try:
        return not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


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
