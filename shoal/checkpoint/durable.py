"""Writing to disk so that a name stands for the whole or for nothing, whenever the process is stopped."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.checkpoint.manifest import FileEntry

TEMPORARY = ".tmp-"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def write_file(path: Path, chunks: Iterable[memoryview]) -> FileEntry:
    """Write a new file and flush it to the disk. The interpreter's lock is free while bytes are handled."""
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("xb", buffering=0) as file:
        for chunk in chunks:
            digest.update(chunk)
            size_bytes += len(chunk)
            rest = chunk
            while rest:  # a disk that fills up takes a part first and refuses the rest
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return FileEntry(size_bytes, digest.hexdigest())


@contextlib.contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Give an empty directory to write into. On success it becomes `final`, on an error nothing is left.

    A `final` that is there already is replaced in one step where the file system can exchange two names.
    Where it cannot, there is a moment in which neither has the name.
    """
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")
    _remove(temporary)
    temporary.mkdir()
    descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks: then `abandoned` may err
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield temporary
        os.fsync(descriptor)
        if not final.exists():
            temporary.rename(final)
        elif not _exchange(temporary, final):
            _replace_in_two_steps(temporary, final)
        fsync_directory(final.parent)
    finally:
        os.close(descriptor)
        # What could not be finished, or what was replaced. If this fails too, the first cause is what
        # matters, and the name is one that `remove_abandoned` knows.
        shutil.rmtree(temporary, ignore_errors=True)


def set_aside(path: Path) -> Path:
    """Take the name from a directory, so that it can be removed at leisure; returns what it is called now."""
    aside = path.with_name(f"{TEMPORARY}removed-{path.name}-{os.getpid()}")
    _remove(aside)
    return path.rename(aside)


def remove_directories(paths: Iterable[Path]) -> None:
    """Remove directories so that a kill leaves none half empty under its own name."""
    aside = [set_aside(path) for path in paths]
    for parent in {path.parent for path in aside}:
        fsync_directory(parent)
    for path in aside:
        _remove(path)


def remove_abandoned(directory: Path) -> list[str]:
    """Remove what writers that are no more have left in `directory`; returns the names."""
    removed = []
    for path in sorted(directory.glob(f"{TEMPORARY}*")):
        if _abandoned(path):
            _remove(path)
            removed.append(path.name)
    return removed


def fsync_directory(path: Path) -> None:
    """Flush the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _abandoned(path: Path) -> bool:
    # a lock goes with its process, whereas a process number comes again, in containers at every start
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    else:
        return True
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _replace_in_two_steps(temporary: Path, final: Path) -> None:
    aside = set_aside(final)
    try:
        temporary.rename(final)
    except OSError:
        aside.rename(final)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Let two paths change their names in one step. False if the system or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV):
        return False
    raise OSError(code, os.strerror(code), str(second))
