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
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from shoal.comm.control import ControlPage
from shoal.core.errors import UserError
from shoal.core.seeds import init_seed
from shoal.core.world import World
from shoal.launch.failure import Account, account_of
from shoal.launch.job import WorkerSpec
from shoal.launch.parcel import unpack
from shoal.launch.process import keep_memory, name_process
from shoal.launch.session import Message, Session, SessionEnd, install


def main(fds: list[int]) -> NoReturn:
    """What the zygote calls in a new worker: control page, message socket, specification, output,
    errors, and the payload if there is one."""
    control_fd, socket_fd, spec_fd, out_fd, error_fd, *payload_fd = fds
    spec = WorkerSpec.from_json(unpack(spec_fd))
    reporter = Reporter(socket.socket(fileno=socket_fd))
    account: Account | None = None
    session = Session(
        world=World(spec.rank, spec.size),
        control=ControlPage(control_fd),
        layers=spec.layers,
        mode=spec.mode,
        script=spec.script,
        json_output=spec.json_output,
        rendezvous=spec.rendezvous,
        report=reporter.send,
    )
    try:
        attach_output(out_fd, error_fd)
        settle_in(f"shoal-{spec.rank}", spec.threads, spec.seed, spec.working_directory)
        install(session)
        if spec.script is not None and not payload_fd:
            run_script(spec, session)
        else:
            run_payload(spec, payload_fd[0])
        session.end()
    except SessionEnd:
        pass
    except BaseException as error:
        account = account_of(error)
    reporter.send(account.to_message() if account is not None else {"type": "done"})
    leave(account.status if account is not None else 0)


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
