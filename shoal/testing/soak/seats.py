"""Seats to run cases in: one is used, another gets ready meanwhile."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from shoal.testing.soak.seat import Seat


class Seats:
    """Hands out a seat, and replaces one that is gone. Use in a ``with`` statement: nothing is left of them."""

    def __init__(self, temporary: Path, spare: bool = True) -> None:
        self._temporary, self._with_spare = temporary, spare
        self._numbers = count()
        self._seat: Seat | None = None
        self._spare: Seat | None = None

    def get(self) -> Seat:
        """The seat, ready for a command."""
        if self._seat is None or not self._seat.alive:
            self.drop()
            self._seat, self._spare = self._spare or self._new(), None
            self._seat.wait_until_ready()
        if self._spare is None and self._with_spare:
            self._spare = self._new()
        return self._seat

    def drop(self) -> None:
        """End the seat there is: what follows gets another one."""
        if self._seat is not None:
            self._seat.close()
            self._seat = None

    def _new(self) -> Seat:
        place = self._temporary / str(next(self._numbers))
        place.mkdir(parents=True)
        return Seat(place)

    def __enter__(self) -> Seats:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()
        if self._spare is not None:
            self._spare.close()
