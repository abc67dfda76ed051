"""`single` keeps the contract of strategies: it is what all others are compared with."""

from __future__ import annotations

import pytest

from shoal.testing.contract import StrategyContract

pytestmark = [pytest.mark.contract, pytest.mark.ranks, pytest.mark.parity]


class TestSingle(StrategyContract):
    strategy = "single"
    worker_counts = (1,)
