"""What services are made of is fetched once, into a folder of the project that git does not see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_FETCH_S = 600.0
_PROJECT = Path(__file__).parents[3]


class ServiceUnavailable(Exception):  # noqa: N818 - a reason, mostly to skip a test
    """A service cannot be had on this machine; the message says why and what would help."""


def cache() -> Path:
    """Where fetched things are kept: `SHOAL_SERVICES_CACHE`, or below the project, or below the home folder."""
    if given := os.environ.get("SHOAL_SERVICES_CACHE"):
        return Path(given)
    if (_PROJECT / "pyproject.toml").exists() and os.access(_PROJECT, os.W_OK):
        return _PROJECT / ".cache" / "services"
    return Path.home() / ".cache" / "shoal" / "services"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time is in such a block; a process that dies leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetched(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, which `make` fills if it is not there; it is there whole or not at all.

    Raises `ServiceUnavailable` as `make` does.
    """
    folder = cache() / name
    try:
        with locked(cache() / f"{name}.lock"):
            if not folder.exists():
                draft = cache() / f"{name}.draft"
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir()
                try:
                    make(draft)
                    draft.rename(folder)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise ServiceUnavailable(f"{cache()} cannot be written: {error}") from None
    return folder


def command(words: Sequence[str], folder: Path, what: str) -> None:
    """Run a command that fetches `what`. Raises `ServiceUnavailable` with the last line that it said."""
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=_FETCH_S, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise ServiceUnavailable(f"{what} cannot be fetched: there is no {words[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise ServiceUnavailable(f"{what} cannot be fetched: it took longer than {_FETCH_S:.0f} s") from None
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise ServiceUnavailable(f"{what} cannot be fetched ({words[0]}: {lines[-1] if lines else 'no word why'})")
