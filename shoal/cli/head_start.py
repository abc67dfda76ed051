"""Importing torch takes far longer than reading a command line: it begins before the line is read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.launch.nursery import Nursery


def wants_workers(words: Sequence[str]) -> bool:
    """Whether this command line will start workers, if there is nothing wrong with it."""
    ours = words[: words.index("--")] if "--" in words else words
    return list(ours[:1]) in (["train"], ["join"]) and len(ours) > 1 and not {"--help", "-h"} & set(ours)


@contextmanager
def head_start(words: Sequence[str]) -> Iterator[Nursery | None]:
    """A nursery that imports torch meanwhile, or None. Whoever did not use it up: it is gone on leaving."""
    if not wants_workers(words):
        yield None
        return
    from shoal.launch.nursery import Nursery

    nursery = Nursery()
    try:
        yield nursery
    finally:
        if nursery.fileno() >= 0:  # nobody has run it to its end: the line was refused
            os.kill(nursery.pid, signal.SIGKILL)
            nursery.close()
