"""A server of the store as a process of its own: what it is started with, and its main function.

`serve` is for whoever has a process to give, such as a launcher that forks. `SubprocessStarter` starts processes by
itself, from nothing. The specification, which holds the keys, goes to the child through its standard input, never in
arguments; the address comes back through its standard output. The child ends with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from shoal.core.errors import ShoalError, UserError
from shoal.store.forked import die_with_parent
from shoal.store.spec import ServerSpec

__all__ = ["ServerSpec", "SubprocessStarter", "serve"]

_FAILED = "!"
_END_S = 5.0


def serve(spec: ServerSpec, on_ready: Callable[[str], None], log: Callable[[str], None] = lambda line: None) -> None:
    """Be a server until SIGTERM, in the main thread. `on_ready` gets the address once it listens.

    Ctrl-C reaches every process of the terminal and is the parent's to handle: it is ignored here. Raises `UserError`
    where the address cannot be had or a plug-in cannot be imported."""
    from shoal.store.server import StoreServer

    sys.path[:0] = [place for place in spec.search_path if place not in sys.path]
    for module in spec.plugins:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"a server cannot import {module!r}: {error}") from error

    def broken(error: BaseException) -> None:
        log(f"this copy cannot be used any more: {type(error).__name__}: {error}")
        server.bulk.later(0.05, lambda: os._exit(1))  # time for the answer to leave

    server = StoreServer(spec, on_broken=broken, log=log)
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
        on_ready(server.address)
        server.run()
    finally:
        server.close()


class Watcher(Protocol):
    """Whom a starter tells what becomes of its processes. From any thread."""

    def on_started(self, name: str, address: str, pid: int) -> None: ...
    def on_ended(self, name: str, how: str) -> None: ...


class SubprocessStarter:
    """Starts servers as children of this process, with a thread for each that waits for its end.

    `template` is what all have in common. Their standard error goes to `log` (a file that is added to), or to ours.
    """

    def __init__(self, template: ServerSpec, log: Path | None = None) -> None:
        self._watcher: Watcher | None = None
        self._watched = threading.Event()
        self._template, self._log = template, log
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` from now on; nobody is told anything before."""
        self._watcher = watcher
        self._watched.set()

    def start(self, name: str, post: int, listen: str) -> None:
        """Start one, and return at once."""
        spec = replace(self._template, name=name, post=post, listen=listen)
        thread = threading.Thread(target=self._mind, args=(spec,), name=f"shoal-server-{name}", daemon=True)
        with self._lock:
            if self._closed:
                return
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            thread.start()

    def kill(self, name: str, why: str) -> None:
        """End one by force; its keeper knows why."""
        with self._lock:
            process = self._processes.get(name)
        if process is not None:
            process.kill()

    def pid(self, name: str) -> int:
        """The process id of one that lives, else 0."""
        with self._lock:
            process = self._processes.get(name)
        return process.pid if process is not None else 0

    def close(self) -> None:
        """End all, and wait for them: a moment to end by themselves, then by force."""
        with self._lock:
            self._closed = True
            self._watched.set()
            processes = list(self._processes.values())
        for process in processes:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that was frozen can end, too
        until_s = time.monotonic() + _END_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))
            process.kill()
        for thread in self._threads:
            thread.join()

    def _mind(self, spec: ServerSpec) -> None:
        """A process from its start to its end. Started here, since it dies with the thread that has started it."""
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self._log.open("ab")) if self._log is not None else None
            with self._lock:
                if self._closed:
                    return
                process = subprocess.Popen(
                    [sys.executable, "-m", "shoal.store.process", str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
                self._processes[spec.name] = process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            process.stdin.write(json.dumps(spec.to_json()).encode())
            process.stdin.close()
        told = process.stdout.readline().decode().strip()
        self._watched.wait()
        watcher = self._watcher
        if watcher is not None and told and not told.startswith(_FAILED):
            watcher.on_started(spec.name, told, process.pid)
        status = process.wait()
        process.stdout.close()
        with self._lock:
            self._processes.pop(spec.name, None)
            closed = self._closed
        if watcher is not None and not closed:
            ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            watcher.on_ended(spec.name, told[len(_FAILED) :] if told.startswith(_FAILED) else ended)


def main() -> int:
    """The child of `SubprocessStarter`."""
    die_with_parent(int(sys.argv[1]))
    spec = ServerSpec.from_json(json.loads(sys.stdin.read()))

    def log(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} server {spec.name}: {line}", file=sys.stderr, flush=True)

    try:
        serve(spec, lambda address: print(address, flush=True), log)
    except ShoalError as error:
        print(f"{_FAILED}{error}".replace("\n", " "), flush=True)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
