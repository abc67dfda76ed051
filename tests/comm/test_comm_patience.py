"""Whether a wait was in vain, where the last one comes and the view breaks at the same moment."""

from __future__ import annotations

import time

import pytest

from shoal.comm.control import ControlPage
from shoal.comm.patience import Patience
from shoal.core.errors import PeerLost

pytestmark = pytest.mark.unit


class _Breaks(ControlPage):
    """The last one arrives, and the view breaks, just before the waiting one looks whether it is broken."""

    arrived_at_last = False

    def broken(self, number: int) -> bool:
        self.arrived_at_last = True
        return True


def test_what_was_complete_before_the_view_broke_is_complete() -> None:
    control = _Breaks()
    try:
        Patience(control, 0, 2, 60.0, 1, (0, 1)).wait(
            lambda: control.arrived_at_last, lambda: [1], "meeting", time.monotonic()
        )
        assert not control.reading(0).waiting
    finally:
        control.close()


def test_what_was_not_complete_is_lost() -> None:
    control = ControlPage()
    control.break_view(1)
    try:
        with pytest.raises(PeerLost, match="view 1 was broken during meeting"):
            Patience(control, 0, 2, 60.0, 1, (0, 1)).wait(lambda: False, lambda: [1], "meeting", time.monotonic())
        assert not control.reading(0).waiting
    finally:
        control.close()
