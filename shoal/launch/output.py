"""Where the output of workers goes: the first one's to this process's own streams, that of all others to their
logs."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import BinaryIO, Literal

import shoal.launch

_HELD_BYTES = 1 << 20
_TAIL_LINES = 20
_CHUNK_BYTES = 1 << 16
# frames that are in every worker
_PLACES = (Path(shoal.launch.__path__[0]).parent, "<frozen runpy>", "<string>")
_MACHINERY = tuple(f'  File "{place}' for place in _PLACES)


class Outlet(ABC):
    """The reading end of a worker's output. Never waits."""

    def __init__(self) -> None:
        self.fd, self.theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)

    def pump(self) -> bool:
        """Take in what has come; False once there can be no more."""
        while self.fd >= 0:
            try:
                data = os.read(self.fd, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                break
            self._take(data)
        return False

    @abstractmethod
    def _take(self, data: bytes) -> None: ...

    def close_theirs(self) -> None:
        """The worker has its own copy of the writing end."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def close(self) -> None:
        """May be called twice."""
        self.close_theirs()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class WorkerLog(Outlet):
    """Output for ``logs/<name>.log``. Held in memory until there is a run directory, so that a
    mistake found before that leaves no directory behind; of very much output only the end is held. `if_any`: without
    output there is no file."""

    def __init__(self, name: str, if_any: bool = False) -> None:
        super().__init__()
        self._name = f"{name}.log"
        self._if_any = if_any
        self._logs: Path | None = None
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._file: BinaryIO | None = None

    def open(self, logs: Path) -> None:
        """Write to `logs` from now on, beginning with what is held."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._logs = logs
        if self._held or not self._if_any:
            self._begin_file(logs)

    def _begin_file(self, logs: Path) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end a run that goes on: the end of it is held
            self._file = (logs / self._name).open("ab", buffering=0)
            self._file.write(b"".join(self._held))

    def _take(self, data: bytes) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write(data)
        self._held.append(data)
        if self._file is None and self._logs is not None:
            self._begin_file(self._logs)
        self._held_bytes += len(data)
        while self._held_bytes > _HELD_BYTES:
            self._held_bytes -= len(self._held.popleft())

    def last_words(self) -> str:
        """The end of what the worker has written, and where the rest is."""
        lines = b"".join(self._held).decode(errors="replace").splitlines()
        if not lines:
            return ""
        lines = _of_a_crash(lines) or lines[-_TAIL_LINES:]
        place = f" (all of it: {self._logs / self._name})" if self._logs is not None else ""
        return f"its last output{place}:\n" + "\n".join(f"  {line}" for line in lines)

    def close(self) -> None:
        super().close()
        if self._file is not None:
            self._file.close()
            self._file = None


def _of_a_crash(lines: list[str]) -> list[str]:
    """What was written before a compiled library failed, and what Python has then written about it: the first frames
    say where, those that are in every worker do not."""
    begins = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    if not begins:
        return []
    at = begins[-1]
    crash = [line for line in lines[at:] if line and not line.startswith(("Extension modules", *_MACHINERY))]
    return lines[max(0, at - _TAIL_LINES // 2) : at] + crash[:_TAIL_LINES]


class Relay(Outlet):
    """Output that is shown by this process: in a notebook, its streams are not those of the terminal."""

    def __init__(self, stream: Literal["stdout", "stderr"]) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def _take(self, data: bytes) -> None:
        stream = getattr(sys, self._stream)  # looked up each time: a notebook replaces it for each cell
        stream.write(self._decoder.decode(data))
        stream.flush()
