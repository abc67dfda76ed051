"""Blocks of remote data sets, kept on the local disk up to a size; the least recently used go first.

Any number of processes may share a folder: files appear whole under their names, and one of the processes at a time
makes room. Whether a file is what it should be is for its reader to check, who can always fetch the block again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

_PARTS = 16  # room is made each time that so large a part of the limit has been written
_FILLED = 0.9  # of the limit is left when room was made


class BlockCache:
    """At most about `limit_bytes` in `folder`: a sixteenth more for each process that writes. Used from any thread."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit = folder, limit_bytes
        self._lock = threading.Lock()
        self._unseen = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.make_room()

    def get(self, key: str) -> bytes | None:
        """What was put under `key`, if it is still there."""
        path = self._folder / key
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep `data` for a while. A disk that is full or lost costs the cache, not the run."""
        if len(data) > self._limit:
            return
        draft = self._folder / f".{key}.{os.getpid()}.{threading.get_ident()}"
        try:
            draft.write_bytes(data)
            draft.replace(self._folder / key)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            return
        with self._lock:
            self._unseen += len(data)
            if self._unseen < self._limit // _PARTS:
                return
            self._unseen = 0
        self.make_room()

    def forget(self, key: str) -> None:
        """It is not what it should be."""
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()

    def make_room(self) -> None:
        """Remove the least recently used files, if there is too much. Leaves it to another process that does so."""
        with contextlib.suppress(OSError), (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = []
            for entry in os.scandir(self._folder):
                if entry.name != ".lock":
                    with contextlib.suppress(OSError):  # another process has just removed or renamed it
                        stat = entry.stat()
                        found.append((stat.st_mtime_ns, stat.st_size, entry.path))
            total = sum(size for _, size, _ in found)
            if total <= self._limit:
                return
            for _, size, path in sorted(found):
                with contextlib.suppress(OSError):
                    Path(path).unlink()
                total -= size
                if total <= self._limit * _FILLED:
                    return
