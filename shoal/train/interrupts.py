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
    """While it holds, SIGINT and SIGTERM ask the run to stop in good order. A launched worker has no need of it: its
    launcher gets the signals."""
    if session.launched or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        session.control.request_stop()
        print("\nshoal: stopping after this step (again to end at once)", file=sys.stderr)
        for other in previous:
            signal.signal(other, signal.default_int_handler)

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
    if hasattr(sys, "ps1"):
        raise KeyboardInterrupt
    raise SystemExit(130)
