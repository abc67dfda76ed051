"""`allreduce` keeps the contract of strategies, through shared memory and through gloo."""

from __future__ import annotations

import pytest

from shoal.testing.checks import check_against_reference, check_repeatable, check_same_bits
from shoal.testing.contract import StrategyContract, short
from shoal.testing.plan import Plan
from shoal.testing.subjects import MAIN
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks, pytest.mark.parity]


class TestAllReduce(StrategyContract):
    strategy = "allreduce"
