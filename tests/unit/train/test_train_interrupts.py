"""Ctrl-C in a process of the user's own: a signal that was ignored stays ignored, the other still ends the run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.comm.control import ControlPage
from shoal.core.world import World
from shoal.launch.session import Session
from shoal.train.interrupts import graceful

pytestmark = pytest.mark.unit


@contextmanager
def ignored(number: int) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_ignored_stays_ignored(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    other = {signal.SIGINT: signal.SIGTERM, signal.SIGTERM: signal.SIGINT}[number]
    session = Session(World(), ControlPage(), launched=False)
    with ignored(number):
        with graceful(session):
            signal.raise_signal(number)
            assert not session.control.stop_requested
            signal.raise_signal(other)
            assert session.control.stop_requested
            signal.raise_signal(number)  # ends nothing at once, either
        assert signal.getsignal(number) is signal.SIG_IGN
    assert "stopping after this step" in capsys.readouterr().err
