"""The second half of the covering set: any two choices of strategy, optimizer, normalisation, fault and resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak_cases import dealt, keeps_the_laws

from shoal.testing.soak.case import Case
from shoal.testing.soak.seats import Seats

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


@pytest.mark.parametrize("case", dealt(1), ids=Case.text)
def test_a_case_keeps_the_laws(case: Case, tmp_path: Path, seats: Seats) -> None:
    keeps_the_laws(case, tmp_path, seats)
