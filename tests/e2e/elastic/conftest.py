"""Fixtures of the tests that hurt a run."""

from __future__ import annotations

import pytest
from e2e import Shoal
from self_hurt import Trials


@pytest.fixture
def trials(shoal_here: Shoal) -> Trials:
    return Trials(shoal_here)
