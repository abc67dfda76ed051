"""The zygote: a process that has imported torch, has run nothing, and forks a child whenever it is asked to.

It stays in one thread and computes nothing, because a process that has used OpenMP cannot be forked. Its children are
not its own: the process that forks them ends at once, so that they fall to the reaper, whose child the zygote is too.
They outlive it, therefore, and another zygote can take its place.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import NoReturn

from shoal.launch.process import die_with_parent, name_process
from shoal.launch.zygote_messages import Fork, Here, Ready, Spares, Tried, receive, send

_ADOPTED_S = 10.0  # for the reaper to become a child's parent


def run(channel: socket.socket, reaper_pid: int, preload: Sequence[str]) -> None:
    """The life of a zygote; returns when the reaper is gone."""
    os.setsid()
    name_process("shoal-zygote")
    begin = time.monotonic()
    for name in preload:
        # what cannot be imported fails again where it is needed, with an error that has its place
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that is shared with the zygote
    try:
        send(channel, Ready(time.monotonic() - begin))
        while True:
            request, fds = receive(channel)
            if not isinstance(request, Spares):
                return
            _fork_spares(channel, fds, reaper_pid)
            for fd in fds:
                os.close(fd)
            send(channel, Tried())
    except (BrokenPipeError, ConnectionResetError):
        return


def _fork_spares(channel: socket.socket, fds: list[int], reaper_pid: int) -> None:
    """Have a process fork a child for each of `fds`, and end. Where there is no memory or no room for another process
    there is none: those that are there must not pay for it."""
    try:
        between = os.fork()
    except OSError:
        return
    if between:
        os.waitpid(between, 0)
        return
    try:
        between = os.getpid()
        for index, fd in enumerate(fds):
            if os.fork() == 0:
                channel.close()
                for other in fds[:index] + fds[index + 1 :]:
                    os.close(other)
                _be_spare(fd, between, reaper_pid)
    finally:
        os._exit(0)


def _be_spare(fd: int, forked_by: int, reaper_pid: int) -> NoReturn:
    """In a new child: wait for the reaper to become the parent, then for what there is to do, and do that."""
    try:
        name_process("shoal-spare")  # first: who has the zygote's name and leads a session is the zygote
        os.setsid()  # the terminal's Ctrl-C is for the launcher alone
        until = time.monotonic() + _ADOPTED_S
        while os.getppid() == forked_by and time.monotonic() < until:
            time.sleep(0.0002)
        die_with_parent(reaper_pid)
        signal.set_wakeup_fd(-1)
        request, fds = _await_work(fd)
        if request is None:
            os._exit(0)  # nobody wants it any more
        module, _, function = request.entry.partition(":")
        getattr(importlib.import_module(module), function)(fds)
    finally:
        os._exit(70)  # an entry ends its process itself: to return is a fault of ours


def _await_work(fd: int) -> tuple[Fork | None, list[int]]:
    with socket.socket(fileno=fd) as channel:
        try:
            send(channel, Here(os.getpid()))
            request, fds = receive(channel)
        except (BrokenPipeError, ConnectionResetError):
            return None, []  # the reaper has asked another zygote meanwhile
    return request if isinstance(request, Fork) else None, fds
