"""Notice to go, at moments at which a worker is in no view."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.comm.control import ControlPage
from shoal.elastic.linked import Identity, LinkedAttendance
from shoal.elastic.status import WorkerState
from shoal.launch.worker import Notice

pytestmark = pytest.mark.unit


class Told:
    """A worker in the state `state`, which is told to go. `killed`: it ended at once."""

    def __init__(self, control: ControlPage, patch: pytest.MonkeyPatch) -> None:
        link: Any = SimpleNamespace(say=lambda status: None, wake=lambda: None, word=None)
        self.attendance = LinkedAttendance(link, Identity("w0", "x", "here", 0), control, 60.0)
        self.notice = Notice(control)
        self.killed: list[int] = []
        patch.setattr(os, "register_at_fork", lambda **hooks: None)  # it would stay for all tests
        patch.setattr(os, "kill", lambda pid, number: self.killed.append(number))

    def tell(self, state: WorkerState) -> None:
        self.attendance._say(state, view=1)
        self.notice.heed(self.attendance)
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    before, control = signal.getsignal(signal.SIGTERM), ControlPage()
    yield Told(control, monkeypatch)
    signal.signal(signal.SIGTERM, before)
    control.close()


@pytest.mark.parametrize("state", ["in", "left", "broken"])
def test_who_is_between_two_views_leaves_in_good_order(told: Told, state: WorkerState) -> None:
    told.tell(state)
    assert (told.notice.given, told.attendance.going, told.killed) == (True, True, [])
    signal.raise_signal(signal.SIGTERM)
    assert told.killed == [signal.SIGTERM], "who is told twice ends at once"


@pytest.mark.parametrize("state", ["door", "finished", "gone"])
def test_who_takes_no_part_ends_at_once(told: Told, state: WorkerState) -> None:
    told.tell(state)
    assert told.killed == [signal.SIGTERM]
