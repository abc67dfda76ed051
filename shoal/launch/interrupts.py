"""Ctrl-C, SIGTERM and a closed terminal as something that a loop can wait for."""

from __future__ import annotations

import signal
import socket
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """While its ``with`` block lasts, SIGINT, SIGTERM and SIGHUP end nothing: `fileno` becomes readable and `take`
    names them.

    Signals that were ignored before stay ignored, and outside the main thread, which alone may have
    handlers, nothing is changed. Afterwards all is as it was.
    """

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def fileno(self) -> int:
        return self._reading.fileno()

    def take(self) -> list[int]:
        """The signals that have come since the last call; does not wait."""
        try:
            return [number for number in self._reading.recv(4096) if number in self._before]
        except BlockingIOError:
            return []

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            # the kernel may deliver a signal to any thread: only this descriptor is sure to wake ours
            self._wakeup_before = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, _nothing)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._wakeup_before)
            for number, handler in self._before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._reading.close()
        self._writing.close()


def _nothing(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has the number already."""
