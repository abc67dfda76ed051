"""Fixtures of the launcher's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import KeptNursery, Launches


@pytest.fixture(scope="session")
def nursery() -> Iterator[KeptNursery]:
    kept = KeptNursery.ready_made()
    yield kept
    kept.really_close()


@pytest.fixture
def launches(tmp_path: Path, nursery: KeptNursery, monkeypatch: pytest.MonkeyPatch) -> Launches:
    monkeypatch.chdir(tmp_path)
    return Launches(tmp_path, nursery)
