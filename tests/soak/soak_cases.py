"""The covering set, dealt out to test files that run beside each other."""

from __future__ import annotations

from pathlib import Path

from shoal.testing.services.sharing import keepers
from shoal.testing.soak.case import Case
from shoal.testing.soak.command import repeating
from shoal.testing.soak.pairs import covering_cases
from shoal.testing.soak.seat import Seat
from shoal.testing.soak.seats import Seats
from shoal.testing.soak.trying import try_case

FILES = 2


def dealt(file: int) -> list[Case]:
    """The cases of file number `file`."""
    return list(covering_cases()[file::FILES])


class KeptSeats(Seats):
    """Seats that outlive a test: the guard against what tests leave behind is told of them."""

    def get(self) -> Seat:
        seat = super().get()
        keepers.add(seat.pid)
        return seat


def keeps_the_laws(case: Case, place: Path, seats: Seats) -> None:
    tried = try_case(case, place / "case", seats)
    told = "\n".join(f"{violation.law}: {violation.words}" for violation in tried.violations)
    assert tried.outcome == "passed", f"{tried.outcome} {tried.words}\n{told}\nrepeat: {repeating(case)}"
