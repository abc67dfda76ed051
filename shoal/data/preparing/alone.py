"""One job at a time: two that make the same data set would take each other's work away."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shoal.core.errors import UserError
from shoal.data.places import Place

LOCK = ".lock"


@contextlib.contextmanager
def alone_in(folder: Place, dest: Place) -> Iterator[None]:
    """Nobody else works in `folder` meanwhile, on this machine. Raises `UserError` if somebody does. In a folder that
    is elsewhere, and from other machines, nobody is seen."""
    if not folder.is_local:
        yield
        return
    path = Path(folder.path) / LOCK
    made = [one for one in path.parents if not one.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        folder.refuse(error)
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone: those it starts do not hold it
        except OSError:
            file.seek(0)
            who = file.read().strip() or "unknown"
            raise UserError(
                f"{dest} is being prepared already, by process {who}: wait for it, or give another place"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # gone with the work that is done
                path.unlink()
            for one in made:
                with contextlib.suppress(OSError):  # it holds what is needed to go on, or the data set
                    one.rmdir()
