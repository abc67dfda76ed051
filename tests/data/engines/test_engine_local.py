"""The engine `local` keeps the contract, on a disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.data.preparing.engine import Engine
from shoal.data.preparing.local import LocalEngine
from shoal.testing.engine_contract import EngineContract

pytestmark = pytest.mark.contract


class TestLocal(EngineContract):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        with LocalEngine(2) as engine:
            yield engine

    @pytest.fixture
    def made_by(self) -> tuple[str, str]:
        return "from shoal.data.preparing.local import LocalEngine", "LocalEngine(2)"
