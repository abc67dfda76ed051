"""Fixtures for tests that need a real service. All processes of a run of tests share one of each, which is started when
the first test asks and gone when the last process ends. Where it cannot be had, the test is skipped and says why.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.testing.services.fetching import ServiceUnavailable
from shoal.testing.services.running import Running
from shoal.testing.services.sharing import shared_by_name


def _folder(factory: pytest.TempPathFactory) -> Path:
    """The same for all processes of a run of tests."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "services"


def _service(name: str, factory: pytest.TempPathFactory) -> Iterator[Running]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(shared_by_name(name, _folder(factory)))
        except ServiceUnavailable as reason:
            pytest.skip(f"no {name} can be had here: {reason}")
        yield running


@pytest.fixture(scope="session")
def _hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from _service("hdfs", tmp_path_factory)


@pytest.fixture(scope="session")
def _s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from _service("s3", tmp_path_factory)


@pytest.fixture
def hdfs(_hdfs: Running) -> str:
    """The URL of a folder on a real HDFS, of this test alone."""
    return f"{_hdfs.url}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def s3(_s3: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a folder on a real S3, of this test alone; keys and endpoint are in the environment."""
    for name, value in _s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"{_s3.url}/{uuid.uuid4().hex[:8]}"
