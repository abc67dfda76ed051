"""A service that runs: its processes, its ports, how to reach it. All of it is noted in its folder, so that any process
can ask or end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from shoal.testing.services.fetching import ServiceUnavailable

NOTE = "service.json"
READY_S = 120.0  # a busy machine; a few seconds otherwise
_END_S = 20.0
_SET_PARENT_DEATH_SIGNAL = 1
_BELOW_EPHEMERAL = range(11_000, 21_000)  # the kernel gives out none of these, nor of those 10,000 above, by itself


@dataclass(frozen=True)
class Running:
    """What is noted of it. `processes`: by their ids, when they began, for ids are used again."""

    name: str
    folder: str
    url: str
    environment: dict[str, str]
    ports: dict[str, int]
    processes: dict[int, str]

    @classmethod
    def noted(cls, folder: Path) -> Running | None:
        """What the folder says; whether it is so, `alive` knows."""
        try:
            read = json.loads((folder / NOTE).read_text())
            return cls(**{**read, "processes": {int(pid): began for pid, began in read["processes"].items()}})
        except (FileNotFoundError, ValueError, TypeError, KeyError):  # none, or of another version
            return None

    def note(self, folder: Path) -> None:
        draft = folder / f"{NOTE}.draft"
        draft.write_text(json.dumps(asdict(self), indent=1))
        draft.rename(folder / NOTE)

    @property
    def alive(self) -> bool:
        """Whether all of its processes are there."""
        return all(_began(pid) == began for pid, began in self.processes.items())

    def end(self, number: signal.Signals) -> None:
        """End its processes and wait until they are gone."""
        theirs = {pid for pid, began in self.processes.items() if _began(pid) == began}
        for pid in theirs:
            _signal(pid, number)
        until = time.monotonic() + _END_S
        while left := {pid for pid in theirs if _began(pid) == self.processes[pid]}:
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                if time.monotonic() > until:
                    _signal(pid, signal.SIGKILL)
            time.sleep(0.02)


class Service(ABC):
    """A kind of service."""

    name: ClassVar[str]
    ends_by: ClassVar[signal.Signals] = signal.SIGTERM

    @abstractmethod
    def fetch(self) -> None:
        """See to it that all it is made of is here. Raises `ServiceUnavailable`."""

    @abstractmethod
    def start(self, folder: Path, die_with_parent: bool = False) -> Running:
        """Start it with its data in `folder`, or what is in `folder` again on the same ports; return when it can be
        used. Raises `ServiceUnavailable` if it cannot be had, `RuntimeError` with its last words if it fails."""

    def stop(self, folder: Path) -> bool:
        """End it, keeping its data. Returns whether there was anything to end."""
        running = Running.noted(folder)
        if running is None or not any(_began(pid) == began for pid, began in running.processes.items()):
            return False
        running.end(self.ends_by)
        return True


def spawn(words: Sequence[str], log: Path, die_with_parent: bool) -> subprocess.Popen[bytes]:
    """Start a process of a service. Without `die_with_parent` it outlives the one who started it."""

    def tie() -> None:
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)

    with log.open("ab") as file:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=tie if die_with_parent else None,  # noqa: PLW1509 - only a keeper asks for it, and has no threads
        )


def wait_until_ready(
    ready: Callable[[], bool], processes: Mapping[str, subprocess.Popen[bytes]], log_of: Callable[[str], Path]
) -> None:
    """Raises `RuntimeError` with the last words of a process that has ended, or of the first when it takes too long."""
    until = time.monotonic() + READY_S
    while not ready():
        for name, process in processes.items():
            if process.poll() is not None or time.monotonic() > until:
                what = "ended" if process.poll() is not None else f"was not ready within {READY_S:.0f} s"
                raise RuntimeError(f"{name} {what}:\n" + "\n".join(_last_lines(log_of(name))))
        time.sleep(0.05)


def processes_of(popens: Mapping[str, subprocess.Popen[bytes]]) -> dict[int, str]:
    return {popen.pid: _began(popen.pid) or "" for popen in popens.values()}


def kill(popens: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Those of a start that failed."""
    for popen in popens.values():
        popen.kill()
        popen.wait()


def free_ports(*names: str) -> dict[str, int]:
    """Ports of loopback on which nobody listens, nor on those 10,000 above."""
    candidates = random.sample(_BELOW_EPHEMERAL, len(_BELOW_EPHEMERAL))
    found = (port for port in candidates if _is_free(port) and _is_free(port + 10_000))
    return dict(zip(names, found, strict=False))


def java() -> str:
    """The command. Raises `ServiceUnavailable`."""
    home = os.environ.get("JAVA_HOME")
    words = f"{home}/bin/java" if home else "java"
    try:
        subprocess.run([words, "-version"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        raise ServiceUnavailable(
            "there is no Java on this machine: `scripts/install-system-packages` installs it on Debian, as root; "
            "anywhere, set JAVA_HOME to a Java 17"
        ) from None
    return words


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _began(pid: int) -> str | None:
    """When this process began, as the kernel counts; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[19] if fields[0] != "Z" else None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _last_lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
