"""How a rank waits for others on its host: polling for a moment, then asleep, and never for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from shoal.comm.control import ControlPage
from shoal.core.errors import CollectiveTimeout, PeerLost

_SPINS = 400  # polls before the first system call: some tens of microseconds
_YIELD_S = 0.001  # then give way to others at each poll, for so long
_SHORTEST_SLEEP_S = 0.00005
_LONGEST_SLEEP_S = 0.002
_SLEEP_SHARE = 0.02  # a sleep lengthens a wait by at most this part of it


class Patience:
    """Waits of the member in `seat` of view `number`, which has `crowd` members on this host.

    `names`: the ranks of the view by which the members of the group are called in an error, in the order of the group.
    While it waits for others its seat says so, so that whoever looks for one that hangs can tell the victims from the
    culprit.
    """

    def __init__(
        self, control: ControlPage, seat: int, crowd: int, timeout_s: float, number: int, names: Sequence[int]
    ) -> None:
        self._control, self._seat, self._number = control, seat, number
        self._timeout_s, self._names = timeout_s, tuple(names)
        # with more ranks than cores, the one that is waited for may need this core
        self._crowded = crowd > len(os.sched_getaffinity(0))

    def wait(self, arrived: Callable[[], bool], missing: Callable[[], Iterable[int]], what: str, since: float) -> None:
        """Poll `arrived` until it is true. `since` (monotonic) is when the operation began: its deadline
        counts from there. Raises `PeerLost` when the view is broken, and `CollectiveTimeout` with those whose
        ranks in the group `missing` gives."""
        if not self._crowded:
            for _ in range(_SPINS):
                if arrived():
                    return
        self._control.wait(self._seat, True)
        try:
            self._wait(arrived, missing, what, since)
        finally:
            self._control.wait(self._seat, False)
            self._control.tick(self._seat)  # it gets on from here: what it waited for is not its own delay

    def _wait(self, arrived: Callable[[], bool], missing: Callable[[], Iterable[int]], what: str, since: float) -> None:
        yield_until = time.monotonic() + (0.0 if self._crowded else _YIELD_S)
        os.sched_yield()
        while not arrived():
            if self._control.broken(self._number):
                if arrived():
                    return  # the last one came before the view broke: for the others this is done, so it is for us
                raise PeerLost(f"view {self._number} was broken during {what}")
            now = time.monotonic()
            if now - since > self._timeout_s:
                raise CollectiveTimeout(what, [self._names[rank] for rank in missing()], now - since)
            if now < yield_until:
                os.sched_yield()
            else:
                waited_s = now - yield_until
                time.sleep(min(_LONGEST_SLEEP_S, max(_SHORTEST_SLEEP_S, waited_s * _SLEEP_SHARE)))
