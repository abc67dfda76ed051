"""A worker: a fork of the zygote that becomes an ordinary Python program and runs the user's script."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from shoal.comm.control import ControlPage
from shoal.core.errors import DiskError, UserError
from shoal.core.seeds import init_seed
from shoal.core.world import World
from shoal.elastic.attendance import RunOver
from shoal.elastic.link import Link
from shoal.elastic.linked import Identity, LinkedAttendance
from shoal.launch.failure import Account, account_of
from shoal.launch.job import WorkerSpec
from shoal.launch.malloc import keep_memory
from shoal.launch.parcel import unpack
from shoal.launch.process import allow_stacks, name_process, step_back
from shoal.launch.session import Message, Session, SessionEnd, install

_NICENESS = 10  # of an evaluator: on a busy machine training goes first


def main(fds: list[int]) -> NoReturn:
    """What the zygote calls in a new worker: control page, message socket, specification, log, the terminal's output
    and errors, and the payload if there is one."""
    control_fd, socket_fd, spec_fd, log_fd, out_fd, error_fd, *payload_fd = fds
    spec = WorkerSpec.from_json(unpack(spec_fd))
    reporter = Reporter(socket.socket(fileno=socket_fd))
    output = Output(log_fd, out_fd, error_fd, spec.rank == 0 and spec.home and spec.role == "worker")
    account: Account | None = None
    try:
        control = ControlPage(control_fd)
        evaluates = spec.role == "evaluator"
        name = "shoal-eval" if evaluates else f"shoal-{spec.rank}"
        settle_in(name, spec.threads, spec.seed, spec.working_directory)
        if evaluates:
            step_back(_NICENESS)
        session = _session(spec, control, reporter, output)
        install(session)
        if spec.script is not None and not payload_fd:
            run_script(spec, session)
        else:
            run_payload(spec, payload_fd[0])
        session.end()
    except SessionEnd:
        pass
    except RunOver as over:
        reporter.send(over.to_message())
    except DiskError as error:
        _was_saving(control, spec.seat)
        account = account_of(error)
    except BaseException as error:
        account = account_of(error)
    if account is not None and spec.role == "evaluator":
        print(account.message, file=sys.stderr)  # to its log: the launcher shows the cause alone
    reporter.send(account.to_message() if account is not None else {"type": "done"})
    leave(account.status if account is not None else 0)


def _was_saving(control: ControlPage, seat: int) -> None:
    """What the disk has refused may have been meant for it at any moment: events are written as they happen, and
    checkpoints in the background."""
    control.enter(seat, control.progress(seat)[0], "save")


def _session(spec: WorkerSpec, control: ControlPage, reporter: Reporter, output: Output) -> Session:
    attendance, notice = None, Notice(control)
    if spec.post is not None:
        post = spec.post
        me = Identity(post.key, post.agent, post.host, spec.seat, post.reach)
        attendance = LinkedAttendance(Link(post.address, post.keys, post.beat_s), me, control, post.start_s)
        notice.heed(attendance)

    def report(message: Message) -> None:
        if message.get("type") == "view":
            output.place(first=message["rank"] == 0 and spec.home)
        elif message.get("type") == "departed":
            message = {**message, "notice": notice.given}  # else the coordinator asked it to
        reporter.send(message)

    return Session(
        world=World(spec.rank, spec.size, seat=spec.seat),
        control=control,
        layers=spec.layers,
        mode=spec.mode,
        script=spec.script,
        json_output=spec.json_output,
        rendezvous=spec.rendezvous or None,
        report=report,
        given_attendance=attendance,
        workers=spec.size,
        home=spec.home,
        role=spec.role,
        follows=spec.follows,
        run_over=reporter.ended,
        take_terminal=lambda: output.place(first=True),
    )


class Notice:
    """SIGTERM as notice that this worker is to go."""

    def __init__(self, control: ControlPage) -> None:
        self.given = False
        self._control = control

    def heed(self, attendance: LinkedAttendance) -> None:
        """Leave at the end of a step when notice is given. Where this worker takes no part, is told twice, or the run
        is over, it ends at once. What it forks is ended by SIGTERM as usual."""

        def on_notice(number: int, frame: object) -> None:
            if self.given or self._control.aborted or not attendance.takes_part:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self.given = True
            attendance.ask_to_go()

        signal.signal(signal.SIGTERM, on_notice)
        os.register_at_fork(after_in_child=_end_as_usual)


def _end_as_usual() -> None:
    with contextlib.suppress(ValueError):  # the fork was not the main thread's: nothing can be set there
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_script(spec: WorkerSpec, session: Session) -> None:
    """Run the script as ``python SCRIPT ARGS`` would."""
    assert spec.script is not None
    sys.argv = [spec.script, *spec.script_args]
    sys.path.insert(0, str(Path(spec.script).absolute().parent))
    runpy.run_path(spec.script, run_name="__main__")
    if session.fits == 0:
        raise UserError(
            f"{spec.script} did not build a Trainer and call fit(), nor shoal.prepare(): there was nothing to "
            "train. Is the call behind a condition that is false here?"
        )


def run_payload(spec: WorkerSpec, payload_fd: int) -> None:
    """Run what the launching interpreter has sent. It is unpickled because it comes from that very
    process, by a descriptor nobody else has."""
    import cloudpickle

    sys.argv = [spec.script or ""]
    sys.path[:] = spec.search_path
    cloudpickle.loads(unpack(payload_fd))()


class Reporter:
    """Sends messages to the launcher, one line of JSON each. May be used from any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        line = json.dumps({**message, "at_s": time.monotonic()}, default=str).encode() + b"\n"
        # without a launcher this process is about to be killed, and nobody is there to be told
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.sendall(line)

    def ended(self, wait_s: float) -> bool:
        """Whether the launcher has ended its side of the channel; waits so long for that. It never sends a word."""
        return bool(select.select([self._channel], [], [], wait_s)[0])


class Output:
    """Where this worker's output goes: to its log, or, while it is the first of a view, to the terminal."""

    def __init__(self, log_fd: int, out_fd: int, error_fd: int, first: bool) -> None:
        self._log, self._terminal = (os.dup(log_fd), os.dup(log_fd)), (out_fd, error_fd)
        self._first = first
        os.close(log_fd)
        attach_output(*map(os.dup, self._terminal if first else self._log))

    def place(self, first: bool) -> None:
        """Change it, if that is a change. Whoever has the stream at hand need not know."""
        if first == self._first:
            return
        self._first = first
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for source, target in zip(self._terminal if first else self._log, (1, 2), strict=True):
            os.dup2(source, target)


def attach_output(out_fd: int, error_fd: int) -> None:
    """Make the descriptors this process's standard output and error, and take its input away."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out_fd, 1), (error_fd, 2)):
        os.dup2(source, target)
    for source in {nothing, out_fd, error_fd} - {0, 1, 2}:
        os.close(source)
    # the zygote's streams do not fit these descriptors: here lines are shown as they end, terminal or not
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.FileIO(0, "r", closefd=False))  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text_output(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text_output(2, "backslashreplace")  # type: ignore[misc]
    faulthandler.enable(sys.stderr)


def _text_output(fd: int, errors: str) -> io.TextIOWrapper:
    binary = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=True)


def settle_in(name: str, threads: int, seed: int, working_directory: str) -> None:
    """Make a fresh fork of the zygote an ordinary process that computes on so many threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    name_process(name)
    allow_stacks()
    keep_memory()
    os.chdir(working_directory)
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    # initial weights are a function of the seed: the same on every worker and in every run
    torch.manual_seed(init_seed(seed))
    random.seed(init_seed(seed))
    np.random.seed(init_seed(seed) & 0xFFFFFFFF)


def leave(status: int) -> NoReturn:
    """End this process as an interpreter would, but without tearing torch down: threads, exit handlers,
    buffers."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status)
