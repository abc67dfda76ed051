"""Reading in spite of failures and stalls: carries out what `patience` decides."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from shoal.core.errors import UserError
from shoal.data.shards.patience import GiveUp, Patience, Standing, Wait, next_move

T = TypeVar("T")


class ReadError(UserError):
    """A file could not be read, however often it was tried."""


def persist(read: Callable[[], T], patience: Patience, what: str, threads: bool) -> T:
    """Return what `read` returns, once one of several tries does. With `threads` each try has one of its own, so that
    a stalled one can be left behind; it ends when the read does. Raises `ReadError`, or the `UserError` of a try:
    what a person must mend is not tried again."""
    begun = time.monotonic()
    answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()
    running = failed = 0
    latest = last_failure = begun
    reason: Exception | None = None

    def attempt() -> None:
        try:
            answers.put((read(), None))
        except Exception as error:
            answers.put((None, error))

    while True:
        now = time.monotonic()
        standing = Standing(now - begun, running, now - latest, failed, now - last_failure)
        move = next_move(patience, standing)
        if isinstance(move, GiveUp):
            because = f" ({type(reason).__name__}: {reason})" if reason is not None else ""
            raise ReadError(
                f"{what} cannot be read: {move.reason}{because}. Look whether the place can be reached, then run the "
                "same command again; loader.deadline_s says how long to try"
            ) from reason
        wait_s = 0.0
        if isinstance(move, Wait):
            wait_s = move.seconds
        else:
            running, latest = running + 1, now
            if threads:
                threading.Thread(target=attempt, daemon=True, name="read").start()
            else:
                attempt()
            continue
        try:
            value, error = answers.get(timeout=wait_s)
        except queue.Empty:
            continue
        running -= 1
        if error is None:
            return value  # type: ignore[return-value]  # a try without an error has one
        if isinstance(error, UserError):
            raise error
        failed, last_failure, reason = failed + 1, time.monotonic(), error
