"""Systems that are measured against each other take turns, a few steps each, so that what else the machine does meets
all of them alike. Standard library only.

The driver lets a run go on by a number of steps and is told the seconds they took; the run stands still until its next
turn. The first step of a turn is not counted: the others of a run may have begun it while their first worker waited.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

_GO, _DONE = "go", "done"
_END = 0  # steps to go on by


class Turns:
    """A run's side, used by its first worker only: `begin` once, then `step` after each step. Both return whether the
    run is to go on."""

    def __init__(self, directory: Path) -> None:
        self._go, self._done = os.open(directory / _GO, os.O_RDWR), os.open(directory / _DONE, os.O_RDWR)
        self._left, self._begun = 0, 0.0

    def begin(self) -> bool:
        """Wait for the next turn."""
        self._left = int(_line(self._go))
        self._begun = 0.0
        return self._left != _END

    def step(self) -> bool:
        now = time.perf_counter()
        if self._begun == 0.0:
            self._begun = now
            return True
        self._left -= 1
        if self._left > 0:
            return True
        os.write(self._done, f"{now - self._begun!r}\n".encode())
        return self.begin()

    def close(self) -> None:
        os.close(self._go)
        os.close(self._done)


class Conductor:
    """The driver's side for one run."""

    def __init__(self, directory: Path) -> None:
        for name in (_GO, _DONE):
            os.mkfifo(directory / name)
        self._go, self._done = os.open(directory / _GO, os.O_RDWR), os.open(directory / _DONE, os.O_RDWR)

    def turn(self, steps: int, patience_s: float) -> float:
        """Let the run go on by `steps` steps and one before them; returns the seconds of the `steps`."""
        os.write(self._go, f"{steps}\n".encode())
        if not select.select([self._done], [], [], patience_s)[0]:
            raise TimeoutError(f"{steps} steps were not done within {patience_s:.0f} s")
        return float(_line(self._done))

    def end(self) -> None:
        """The run may come to its end."""
        os.write(self._go, f"{_END}\n".encode())

    def close(self) -> None:
        os.close(self._go)
        os.close(self._done)


def _line(pipe: int) -> bytes:
    """What was written at once: lines are shorter than what a pipe takes in one piece."""
    return os.read(pipe, 512).splitlines()[0]
