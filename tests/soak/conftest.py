"""Where the cases of the tests are run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from soak_cases import KeptSeats

from shoal.testing.soak.seats import Seats


@pytest.fixture(scope="module")
def seats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seats]:
    with KeptSeats(tmp_path_factory.mktemp("seats"), spare=False) as seats:
        yield seats
