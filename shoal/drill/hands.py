"""What touches processes: signals to those of the run under drill, and to no others."""

from __future__ import annotations

import json
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import psutil


class Hands(ABC):
    """How a fault is carried out. Each verb says whether it met someone alive; only then is the fault counted."""

    @abstractmethod
    def alive(self, pid: int) -> bool:
        """Whether `pid` is a process of the run under drill, and neither gone nor a zombie."""

    @abstractmethod
    def send(self, pid: int, number: signal.Signals) -> bool:
        """Send a signal; False if there was nobody alive to get it."""

    @abstractmethod
    def coordinator(self) -> int | None:
        """The process of the coordinator as it is now, or None."""

    def host_name(self, host: int) -> str:
        """What the events call host `host`."""
        return f"host {host}"

    def cut(self, host: int) -> bool:
        """Take the link of a host down; False if that cannot be done now."""
        return False

    def mend(self, host: int) -> None:  # noqa: B027 - where nothing was cut, nothing is to be mended
        """Put the link back."""


class SignalHands(Hands):
    """Real signals, only ever to processes below those that `roots` gives: a number that was given to a stranger
    meanwhile is left alone."""

    def __init__(self, roots: Callable[[], set[int]], run_dir: Path) -> None:
        self._roots = roots
        self._run_dir = run_dir

    def alive(self, pid: int) -> bool:
        try:
            process = psutil.Process(pid)
            if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return False
            return not self._roots().isdisjoint(parent.pid for parent in process.parents())
        except psutil.Error:
            return False

    def send(self, pid: int, number: signal.Signals) -> bool:
        if not self.alive(pid):
            return False
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def coordinator(self) -> int | None:
        try:
            pid = int(json.loads((self._run_dir / "coordinator.json").read_text())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there yet, or just being written
        return pid if self.alive(pid) else None
