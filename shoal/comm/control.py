"""The control page of a host: a few words of shared memory between an agent and its workers.

It carries what must be seen at once and without a message: which views are broken (`break_view`), that the run should
stop at the next step (`stop`), and how far each worker is and what it is doing, for errors that name the culprit and
for whoever looks for one that hangs. Every worker of the host has a *seat*, a row of words, for its whole life,
whatever its rank becomes. Each word has one writer, or all write the same to it; words are 8 bytes and aligned, so a
reader sees a whole value. The page is anonymous memory (memfd), inherited by descriptor: nothing is left behind however
the run ends.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np

from shoal.core.phases import PHASES

_BROKEN, _STOP, _ABORTED = 0, 1, 2
_LATELY, _LATELY_WORDS = 3, 5  # of the views that broke lately: neighbours have different words
_HEADER_WORDS = 8
_WORDS_PER_SEAT = 8
_STEP, _PHASE, _VIEW, _TICKS, _WAITING, _STEPS_DONE, _UNHEARD = range(7)
PAGE_BYTES = 65536  # room for 1023 workers
_RANKS = 1 << 16  # more than a view can have
MAX_WORKERS = PAGE_BYTES // 8 // _WORDS_PER_SEAT - 1


@dataclass(frozen=True)
class Reading:
    """What can be seen of a worker in its seat. `ticks` grows with everything it does; `waiting`: it waits for others
    in a collective operation; `steps_done`: since it took the seat; `view`: the one it is in, 0 for none. `unheard`:
    the rank, in that view, of a worker on another host that does not get what it sends; None: there is none."""

    step: int
    phase: str
    view: int
    ticks: int
    waiting: bool
    steps_done: int
    unheard: int | None = None


class ControlPage:
    """Attach to the page behind `fd`, or make a new one. The segment behind `fd` may be grown by others past
    `PAGE_BYTES`; the page itself never moves."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("shoal-run", os.MFD_CLOEXEC)
            os.ftruncate(fd, PAGE_BYTES)
        self.fd = fd
        self._map = mmap.mmap(fd, PAGE_BYTES, mmap.MAP_SHARED)
        self._words = np.frombuffer(self._map, dtype=np.int64)

    def abort(self) -> None:
        """The run is over: every wait ends with `PeerLost`."""
        self._words[_ABORTED] = 1

    @property
    def aborted(self) -> bool:
        return bool(self._words[_ABORTED])

    def break_view(self, number: int) -> None:
        """Views up to `number` are broken: every wait in them ends with `PeerLost`.

        Several processes say so, and one of them may be held up between its look at the word and its writing: what it
        then says of an older view must not undo what was said of a newer one. So that has a word of its own.
        """
        for at in (_LATELY + number % _LATELY_WORDS, _BROKEN):
            if self._words[at] < number:  # noqa: PLR1730 - what does not grow is not written
                self._words[at] = number

    def broken(self, number: int) -> bool:
        """Whether view `number` is broken, or the run is over."""
        words = self._words
        return bool(words[_BROKEN] >= number or words[_LATELY + number % _LATELY_WORDS] >= number or words[_ABORTED])

    def request_stop(self) -> None:
        """Ask all workers to stop at the end of their step."""
        self._words[_STOP] = 1

    def clear_stop(self) -> None:
        """Take the request back: the run that it was for has ended."""
        self._words[_STOP] = 0

    @property
    def stop_requested(self) -> bool:
        return bool(self._words[_STOP])

    def _base(self, seat: int) -> int:
        return _HEADER_WORDS + seat * _WORDS_PER_SEAT

    def take_seat(self, seat: int) -> None:
        """A new worker is about to sit here: clear what the last one left."""
        base = self._base(seat)
        self._words[base : base + _WORDS_PER_SEAT] = 0

    def enter(self, seat: int, step: int, phase: str) -> None:
        """The worker in `seat` says what it does now."""
        base = self._base(seat)
        self._words[base + _STEP] = step
        self._words[base + _PHASE] = PHASES.index(phase)
        self._words[base + _TICKS] += 1

    def tick(self, seat: int) -> None:
        """The worker in `seat` has got on with what it does."""
        self._words[self._base(seat) + _TICKS] += 1

    def step_done(self, seat: int) -> None:
        """The worker in `seat` has committed a step."""
        self._words[self._base(seat) + _STEPS_DONE] += 1

    def enter_view(self, seat: int, number: int) -> None:
        """The worker in `seat` takes part in view `number` from now on; 0: in none."""
        self._words[self._base(seat) + _VIEW] = number

    def wait(self, seat: int, waiting: bool) -> None:
        """The worker in `seat` begins or ends to wait for others."""
        self._words[self._base(seat) + _WAITING] = waiting

    def unheard(self, seat: int, view: int, rank: int | None) -> None:
        """The worker in `seat` is not heard by the one that has this rank in this view; None: it is heard by all, as
        far as it knows."""
        self._words[self._base(seat) + _UNHEARD] = 0 if rank is None else view * _RANKS + rank + 1

    def progress(self, seat: int) -> tuple[int, str]:
        """The step and phase that the worker in `seat` was in last."""
        base = self._base(seat)
        return int(self._words[base + _STEP]), PHASES[int(self._words[base + _PHASE])]

    def reading(self, seat: int) -> Reading:
        """All that can be seen of the worker in `seat`."""
        base = self._base(seat)
        words = self._words[base : base + _WORDS_PER_SEAT].tolist()
        return Reading(
            step=words[_STEP],
            phase=PHASES[words[_PHASE]],
            view=words[_VIEW],
            ticks=words[_TICKS],
            waiting=bool(words[_WAITING]),
            steps_done=words[_STEPS_DONE],
            unheard=words[_UNHEARD] % _RANKS - 1 if words[_UNHEARD] // _RANKS == words[_VIEW] > 0 else None,
        )

    def close(self) -> None:
        """Give the page back. May be called twice."""
        if self.fd >= 0:
            self._words = np.zeros(PAGE_BYTES // 8, dtype=np.int64)
            self._map.close()
            os.close(self.fd)
            self.fd = -1
