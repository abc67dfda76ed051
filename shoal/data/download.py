"""Files from the network, kept in a cache folder: whole and verified, or not there.

Several processes may ask for the same file at once: one downloads it, the others wait for it. What was broken off goes
on where it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import UserError
from shoal.data.download_progress import Progress

_CHUNK_BYTES = 1 << 18
_TRIES = 4  # of each address
_PAUSE_S = 0.5  # before the second try; twice as long before each further one
_ANSWER_S = 30.0
_SILENT_S = 120.0  # how long another process may download without getting further


class DownloadError(UserError):
    """A file could not be had from the network. Says where to put it by hand."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set, the same at all `urls`. `checksum` is ``md5:…`` or ``sha256:…`` in hexadecimal."""

    name: str
    urls: tuple[str, ...]
    checksum: str


def cache_folder() -> Path:
    """`SHOAL_CACHE`, or ``~/.cache/shoal``."""
    stated = os.environ.get("SHOAL_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(stated).expanduser() if stated else Path(home).expanduser() / "shoal"


def fetch(file: RemoteFile, folder: Path) -> Path:
    """The file in `folder`, verified; downloaded if it is not there. Raises `DownloadError`."""
    path = folder / file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(
            f"the cache folder {folder} cannot be used ({error.strerror}): set SHOAL_CACHE to another"
        ) from None
    with locked(path.with_name(path.name + ".lock"), path.with_name(path.name + ".part")):
        if path.exists():
            if _is_verified(path, file):
                return path
            raise DownloadError(
                f"{path} is not {file.name}: it should have the checksum {file.checksum}. Remove it, and it is "
                "downloaded again"
            )
        part = path.with_name(path.name + ".part")
        _download(file, part, path)
        part.replace(path)
        _note(path, file)
        return path


@contextlib.contextmanager
def locked(lock: Path, grows: Path) -> Iterator[None]:
    """One process at a time. Waits as long as the file `grows`, on which another one works, does so; a process that
    dies gives its lock back. Raises `DownloadError`."""
    with lock.open("a+") as file:
        size, since = -1, time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = grows.stat().st_size if grows.exists() else 0
                if now != size:
                    size, since = now, time.monotonic()
                elif time.monotonic() - since > _SILENT_S:
                    raise DownloadError(
                        f"process {_holder(lock)} has had {lock} for {_SILENT_S:.0f} s without getting further: end "
                        "it, and start again"
                    ) from None
                time.sleep(0.05)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _holder(lock: Path) -> str:
    return lock.read_text() or "unknown"


def _download(file: RemoteFile, part: Path, path: Path) -> None:
    problems: list[str] = []
    for url in file.urls:
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE_S * 2 ** (attempt - 1))
            try:
                _get(url, part, file.name)
            except urllib.error.HTTPError as error:
                problems.append(f"{url}: {error.code} {error.reason}")
                if error.code < 500 and error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    break  # it will say the same again
                part.unlink(missing_ok=True)
            except (OSError, http.client.HTTPException) as error:
                problems.append(f"{url}: {getattr(error, 'reason', None) or error}")
                if _is_unreachable(error):
                    break
            else:
                found = _checksum(part, file.checksum)
                if found == file.checksum:
                    return
                problems.append(f"{url}: what came has the checksum {found}, not {file.checksum}")
                part.unlink()
    raise DownloadError(_words(file, path, problems))


def _is_unreachable(error: Exception) -> bool:
    """Whether there is no network, or nobody there: trying again at once would only take time."""
    reason = getattr(error, "reason", error)
    return isinstance(reason, ConnectionRefusedError) or (
        isinstance(reason, OSError) and not isinstance(reason, ConnectionError | TimeoutError)
    )


def _words(file: RemoteFile, path: Path, problems: Sequence[str]) -> str:
    told = "\n".join(f"  {problem}" for problem in dict.fromkeys(problems))
    return (
        f"{file.name} could not be downloaded:\n{told}\nWithout a network, put the file there by hand: {path} "
        f"({file.checksum}). SHOAL_CACHE sets another folder"
    )


def _get(url: str, part: Path, name: str) -> None:
    """Append to `part` what is missing of it. Raises `OSError` or `http.client.HTTPException`."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310 - the addresses are the registry's
        if have and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server sends all of it again
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file, Progress(name, have, total) as progress:
            while chunk := answer.read(_CHUNK_BYTES):
                file.write(chunk)
                progress.advance(len(chunk))
            got = file.tell()
    if total is not None and got < total:
        raise ConnectionError(f"broken off after {got:,} of {total:,} bytes")


def _checksum(path: Path, like: str) -> str:
    kind = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def _marks(path: Path, file: RemoteFile) -> str:
    stat = path.stat()
    return f"{file.checksum} {stat.st_size} {stat.st_mtime_ns}"


def _note(path: Path, file: RemoteFile) -> None:
    """So that it need not be read at each start."""
    path.with_name(path.name + ".verified").write_text(_marks(path, file))


def _is_verified(path: Path, file: RemoteFile) -> bool:
    noted = path.with_name(path.name + ".verified")
    if noted.exists() and noted.read_text() == _marks(path, file):
        return True
    if _checksum(path, file.checksum) != file.checksum:
        return False
    _note(path, file)
    return True
