"""One job at a time: two that make the same data set would take each other's work away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shoal.core.errors import UserError
from shoal.data.places import Place

LOCK = ".lock"
_HELD: set[Path] = set()  # by threads of this process, which a lock does not keep apart
_HOLDING = threading.Lock()


@contextlib.contextmanager
def alone_at(dest: Place, folder: Path) -> Iterator[None]:
    """Nobody else on this machine makes a data set at `dest` meanwhile; a lock in `folder`, the same for all who would,
    sees to it. Raises `UserError` if somebody does. On a disk that knows no locks nobody is seen."""
    path = folder / LOCK
    try:
        made = [one for one in path.parents if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        file = _locked(path, dest)
    except OSError as error:
        raise UserError(f"{folder} cannot be used: {error.strerror or error}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        file.close()
        with _HOLDING:
            _HELD.discard(path)
        for one in dict.fromkeys([folder, *made]):
            with contextlib.suppress(OSError):  # it holds what is needed to go on, or the data set
                one.rmdir()


def _locked(path: Path, dest: Place) -> IO[str]:
    with _HOLDING:
        if path in _HELD:
            raise _taken(dest, str(os.getpid()))
        while True:
            file = path.open("a+")
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process: those it starts do not hold it
            except (BlockingIOError, PermissionError):
                file.seek(0)
                who = file.read().strip()
                file.close()
                raise _taken(dest, who) from None
            except OSError:  # there are no locks here
                pass
            if _is_there(path, file):
                break
            file.close()  # who held it has just ended, and removed it
        _HELD.add(path)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _is_there(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _taken(dest: Place, who: str) -> UserError:
    by = f", by process {who}" if who else ""
    return UserError(f"{dest} is being prepared already{by}: wait for it, or give another place")
