"""One `shoal train` as a process of its own, and how it is ended with everything below it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

POLITE_S = 10.0  # what a run gets to end in good order


class TrainProcess:
    """A command that runs from construction on, in a session of its own: a Ctrl-C at the terminal is ours to pass on.
    Its output goes to a file. Use in a ``with`` statement: nothing of it is left afterwards."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._log = log
        self._begun = time.monotonic()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._seconds = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seconds(self) -> float:
        """How long it ran, or runs by now."""
        return self._seconds or time.monotonic() - self._begun

    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        status = self._process.poll()
        if status is not None and not self._seconds:
            self._seconds = time.monotonic() - self._begun
        return status

    def end(self) -> None:
        """Ask it to stop; end it and all below it where that takes too long."""
        below = self._below()
        try:
            if self.status() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGTERM)  # SIGINT may be ignored, where a script started the drill
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(POLITE_S)
        finally:  # also after a second Ctrl-C
            below |= self._below()
            if self.status() is None:
                self._process.kill()
                self._process.wait()
            for process in below:
                with contextlib.suppress(psutil.Error):  # compares the time of birth: a number given anew is spared
                    process.kill()
            psutil.wait_procs(below, timeout=POLITE_S)

    def _below(self) -> set[psutil.Process]:
        try:
            return set(psutil.Process(self.pid).children(recursive=True))
        except psutil.Error:
            return set()

    def last_words(self, lines: int = 20) -> str:
        """The end of its output."""
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def __enter__(self) -> TrainProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
