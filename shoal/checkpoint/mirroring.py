"""Copying checkpoints to a mirror in the background: never in a step's way, tried again until it succeeds.

Of several that wait only the newest is copied. A place that stays away is told once, and does not stop training.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.checkpoint.mirror import Held, Mirror, Owner
from shoal.checkpoint.retention import Record
from shoal.core.errors import CheckpointError, UserError
from shoal.core.events import Mirrored
from shoal.core.places import UnreachableError

_NICENESS = 10  # of the thread: on a busy machine training goes first
_FIRST_S, _LONGEST_S = 0.5, 30.0
_AWAY = 3  # failures in a row after which a place counts as away


def pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row: twice as long each time, up to half a minute."""
    assert failures >= 1
    return float(min(_LONGEST_S, _FIRST_S * 2 ** min(failures - 1, 16)))


@dataclass(frozen=True)
class Under:
    """The checkpoint under way, and how much of it has been moved: each byte goes there and is read back."""

    name: str
    moved_bytes: int
    total_bytes: int


class _Closed(Exception):  # noqa: N818 - control flow
    """Nobody waits for this copy any more."""


class Mirroring:
    """Copies what it is offered to `mirror`, one checkpoint at a time, in a thread; removes there what is `obsolete`.

    `offer` may be called from any thread, the rest is for one. A process that ends meanwhile leaves no half-copied
    checkpoint that looks like one.
    """

    def __init__(self, mirror: Mirror, owner: Owner, obsolete: Callable[[Sequence[Record]], list[str]]) -> None:
        self._mirror, self._owner, self._obsolete = mirror, owner, obsolete
        self._condition = threading.Condition()
        self._waiting: Path | None = None
        self._under: Under | None = None
        self._news: list[Mirrored] = []
        self._closed = False
        self._failures = 0
        self._told = False  # of the place being away
        self._thread = threading.Thread(target=self._run, name="shoal-mirror", daemon=True)
        self._thread.start()

    def offer(self, path: Path) -> None:
        """A checkpoint is complete at `path`. One that waits to be copied is passed over for it."""
        with self._condition:
            self._waiting = path
            self._condition.notify_all()

    def poll(self) -> list[Mirrored]:
        """What has happened since the last call."""
        with self._condition:
            news, self._news = self._news, []
        return news

    @property
    def place(self) -> str:
        """Where the copies go."""
        return str(self._mirror.place)

    @property
    def under(self) -> Under | None:
        """What is being copied, or waits for it; None: nothing is left to do."""
        with self._condition:
            waiting = Under(self._waiting.name, 0, 0) if self._waiting is not None else None
            return self._under or waiting

    def wait(self, wait_s: float) -> bool:
        """Wait until nothing is left to copy, or for so long; returns whether nothing is left."""
        with self._condition:
            return self._condition.wait_for(self._idle, wait_s)

    def close(self, wait_s: float = 2.0) -> None:
        """Break off what is under way and end the thread. One that a place keeps waiting ends with its process."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._thread.join(wait_s)

    # ---- in the thread

    def _idle(self) -> bool:
        return self._waiting is None and self._under is None

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # a matter of courtesy, and of Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._condition:
                # no deadline: it waits for its own process, as a daemon that ends with it
                self._condition.wait_for(lambda: self._waiting is not None or self._closed)
                path, self._waiting = self._waiting, None
                if path is None or self._closed:
                    return
                self._under = Under(path.name, 0, 0)
            with contextlib.suppress(_Closed):
                self._copy(path)
            with self._condition:
                self._under = None
                self._condition.notify_all()

    def _copy(self, path: Path) -> None:
        """Copy until it is there, a newer one waits, or it turns out that it cannot be copied at all."""
        begun = time.monotonic()
        try:
            held = Held(path)
        except FileNotFoundError:
            return  # it is no longer kept: a newer one is there
        except (OSError, CheckpointError) as error:
            self._tell(Mirrored(path.name, str(self._mirror.place), "failed", reason=str(error)))
            return
        with contextlib.closing(held):
            while not self._attempt(held, begun):
                with self._condition:
                    newer = self._condition.wait_for(
                        lambda: self._closed or self._waiting is not None, pause_s(self._failures)
                    )
                if newer:
                    return  # what is left of this one there is removed with the next one's coming

    def _attempt(self, held: Held, begun: float) -> bool:
        """Returns whether nothing is left to do for this checkpoint."""
        mirror = self._mirror
        self._under = _begun(held)

        def moved(count: int) -> None:
            with self._condition:
                assert self._under is not None
                self._under = replace(self._under, moved_bytes=self._under.moved_bytes + count)
                if self._closed:
                    raise _Closed

        try:
            mirror.claim(self._owner)
            if not mirror.holds(held):
                if self._failures:  # what broken copies have left there may be in the way
                    mirror.tidy(self._obsolete, held.step - 1)
                mirror.put(held, moved)
                seconds, size_bytes = time.monotonic() - begun, held.manifest.size_bytes
                self._tell(Mirrored(held.name, str(mirror.place), "copied", size_bytes, seconds))
            mirror.tidy(self._obsolete, held.step)
        except _Closed:
            raise
        except CheckpointError as error:  # what is here is damaged: trying again mends nothing
            self._tell(Mirrored(held.name, str(mirror.place), "failed", reason=str(error)))
            return True
        except Exception as error:  # a place has errors of its own; whatever it is, training goes on
            self._failures, self._under = self._failures + 1, _begun(held)
            if not self._told and (self._failures >= _AWAY or _wants_help(error)):
                self._told = True
                self._tell(Mirrored(held.name, str(mirror.place), "away", reason=_words(error)))
            return False
        self._failures, self._told = 0, False
        return True

    def _tell(self, news: Mirrored) -> None:
        with self._condition:
            self._news.append(news)


def _begun(held: Held) -> Under:
    """A copy of which those files are done that have been verified."""
    files = held.manifest.files
    arrived_bytes = sum(files[name].size_bytes for name in held.arrived)
    return Under(held.name, 2 * arrived_bytes, 2 * held.manifest.size_bytes)


def _wants_help(error: Exception) -> bool:
    """Whether waiting alone will hardly mend it."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or (isinstance(error, UserError) and not isinstance(error, UnreachableError))


def _words(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space left there: free some"
    return str(error).partition("\n")[0] or type(error).__name__
