"""A little space on the disk of a run, held back so that the end of the run can be told even where no other is left."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SIZE_BYTES = 16384


class Reserve:
    """Held from the beginning, if the disk has it, until `give_back`. What a killed process holds is given back when
    its run directory is opened again: it has the name of a file that is being written."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / f".reserve.{os.getpid()}.tmp"
        try:
            with self._file.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, SIZE_BYTES)
        except OSError:
            self.give_back()

    def give_back(self) -> None:
        """Free the space. May be called twice."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
