"""Where cases are run: a process that stands for the user's terminal, and keeps a zygote, so that a command begins at
once. It may be killed with all that is below it; then another takes its place."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

import shoal
from shoal.launch.nursery import PRELOAD, Nursery
from shoal.launch.process import die_with_parent
from shoal.launch.reaper import STANDING

_READY_S = 180.0
_END_S = 10.0


class KeptNursery(Nursery):
    """A zygote that outlives a launch."""

    def close(self, deadline_s: float = 8.0) -> None:
        pass

    def wait_until_ready(self) -> None:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.poll(_READY_S * 1000)
        self.events()


def main() -> None:
    """Carry out commands that come as lines of JSON, one after the other."""
    import shoal.cli.main as command

    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, lambda number, frame: None)  # between two commands nobody listens
    nursery = KeptNursery((*PRELOAD, "shoal.testing.soak.play"))
    nursery.wait_until_ready()

    @contextlib.contextmanager
    def head_start(words: Sequence[str]) -> Iterator[Nursery]:
        yield nursery

    command.head_start = head_start  # type: ignore[attr-defined]  # as the tests do: no command waits for torch
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.write(answers, json.dumps({"reaper": nursery.pid}).encode() + b"\n")
    for line in sys.stdin:
        order = json.loads(line)
        os.chdir(order["place"])
        for name, target in (("out", 1), ("err", 2)):
            fd = os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(fd, target)
            os.close(fd)
        status = command.main(order["words"])
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.write(answers, json.dumps({"status": status}).encode() + b"\n")


@dataclass(frozen=True)
class Answer:
    """How a command ended; `status` is None where the seat itself was killed."""

    status: int | None


class Seat:
    """Ready when made, once `wait_until_ready` has returned. Use in a ``with`` statement: nothing is left below it."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        root = str(Path(shoal.__file__).parent.parent)
        given = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
        given["TORCHINDUCTOR_CACHE_DIR"] = str(temporary.with_name("torch"))
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from shoal.testing.soak.seat import main; main()", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=given,
            start_new_session=True,
        )
        self.reaper = 0
        self._text = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Return once it takes commands: its deadlines are not those of a case."""
        until = time.monotonic() + _READY_S
        while not self.reaper:
            answer = self._line(max(0.0, until - time.monotonic()))
            assert answer, "the seat did not get ready"
            self.reaper = int(json.loads(answer)["reaper"])

    def start(self, place: Path, words: Sequence[str], out: Path, err: Path) -> None:
        """Begin a command in directory `place`."""
        order = {"place": str(place), "words": list(words), "out": str(out), "err": str(err)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, wait_s: float) -> Answer | None:
        """The end of the command, or None if it has not come after so long."""
        line = self._line(wait_s)
        if line:
            return Answer(int(json.loads(line)["status"]))
        return None if self.alive else Answer(None)

    def _line(self, wait_s: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        until = time.monotonic() + wait_s
        while b"\n" not in self._text:
            left = until - time.monotonic()
            if not select.select([fd], [], [], max(0.0, left))[0]:
                return b""
            chunk = os.read(fd, 65536)
            if not chunk:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_S)
                return b""
            self._text += chunk
        line, _, self._text = self._text.partition(b"\n")
        return line

    def below(self) -> list[psutil.Process]:
        """Everything that it has started and that is still there, but for what the next command starts from."""
        with contextlib.suppress(psutil.Error):
            return [one for one in psutil.Process(self.pid).children(recursive=True) if _name(one) not in STANDING]
        return []

    def close(self) -> None:
        """End it and everything below it. May be called twice."""
        doomed: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            doomed = psutil.Process(self.pid).children(recursive=True)
        if self.alive:
            self._process.kill()
        self._process.wait()
        for process in doomed:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(doomed, timeout=_END_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return STANDING[0]  # it has just ended
