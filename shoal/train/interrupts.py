"""Ctrl-C in a process that the user started: the first ends the run at the next step, the second at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from shoal.launch.session import Session, SessionEnd


@contextlib.contextmanager
def graceful(session: Session) -> Iterator[None]:
    """While it holds, SIGINT and SIGTERM ask the run to stop in good order. One that was ignored before stays ignored,
    as SIGINT is for what a script starts in the background. A launched worker has no need of it: its launcher gets the
    signals."""
    if session.launched or threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {number: handler for number, handler in found.items() if handler is not signal.SIG_IGN}

    def on_signal(number: int, frame: FrameType | None) -> None:
        session.control.request_stop()
        for other in previous:  # before anything is said: whoever reads it may send the next one at once
            signal.signal(other, at_once)
        print("\nshoal: stopping after this step: saving … (Ctrl-C again to end at once)", file=sys.stderr)

    def at_once(number: int, frame: FrameType | None) -> None:
        for other in previous:
            signal.signal(other, signal.SIG_IGN)  # it ends already
        if _interactive():
            raise KeyboardInterrupt
        print("\nshoal: ended at once, without saving", file=sys.stderr)
        raise SystemExit(128 + number)

    for number in previous:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        session.control.clear_stop()


def leave(session: Session) -> None:
    """The run was interrupted: what follows in the script is not for a half-trained model."""
    if session.launched:
        raise SessionEnd
    if _interactive():
        raise KeyboardInterrupt
    raise SystemExit(130)


def _interactive() -> bool:
    """Whether someone sits at a prompt, to which Ctrl-C leads back."""
    return hasattr(sys, "ps1")
