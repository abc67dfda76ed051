"""A task: a piece of the work that any process anywhere can do, and do again.

`run` is a function of what the task holds and of files. It reads and writes through `Place`, writes atomically, under
names that are its own, and returns a plain value (what JSON can hold). `perform` keeps that value in the folder of the
work under the name of the task: whoever performs the task again gets it without doing anything. So a job that was
broken off goes on where it was, and a task that two processes do at once is harmless.
"""

from __future__ import annotations

import errno
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import UserError
from shoal.data.places import AccessError, Place

Result = dict[str, Any]  # what JSON can hold


@dataclass(frozen=True)
class Task(ABC):
    """Can be pickled. `name` is unique within `work`, the folder that all tasks of a job share."""

    name: str
    work: Place

    @abstractmethod
    def run(self) -> Result:
        """Do it. Raises `UserError` for what trying again cannot mend."""

    @property
    def receipt(self) -> Place:
        """Where its result is, once it is done."""
        return self.work / f"{self.name}.json"

    @property
    def about(self) -> str:
        """What it works on, for people."""
        return self.name


def perform(task: Task) -> Result:
    """The result of `task`, by doing it if nobody has. This is what an engine runs, in any process."""
    done = receipt_of(task)
    if done is not None:
        return done
    try:
        result = task.run()
        task.receipt.write(json.dumps(result).encode())
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(
                f"no space is left on the disk for {task.about}: free some and run the same again, it goes on from "
                "there; or say where to spill with --work DIR"
            ) from None
        raise
    return result


def receipt_of(task: Task) -> Result | None:
    """The result of a task that was done, else None."""
    try:
        if not task.receipt.exists():
            return None
        result: Result = json.loads(task.receipt.read())
    except (AccessError, ValueError):
        return None
    return result
