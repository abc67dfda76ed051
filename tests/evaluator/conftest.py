"""Fixtures of the tests of evaluators."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from evaluator_runs import KeptNursery, Runs

import shoal.cli.main
from shoal.launch.nursery import Nursery
from shoal.launch.reaper import STANDING


@pytest.fixture(scope="session")
def evaluator_nursery() -> Iterator[KeptNursery]:
    kept = KeptNursery.ready_made()
    yield kept
    kept.really_close()


def _begun(nursery: KeptNursery) -> list[str]:
    """What a nursery has started and is still there."""
    below = psutil.Process(nursery.pid).children(recursive=True)
    return [str(one) for one in below if one.is_running() and one.name() not in STANDING]


@pytest.fixture
def runs(
    tmp_path: Path,
    evaluator_nursery: KeptNursery,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Runs]:
    @contextlib.contextmanager
    def head_start(words: object) -> Iterator[Nursery]:
        yield evaluator_nursery

    monkeypatch.setattr(shoal.cli.main, "head_start", head_start)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    yield Runs(tmp_path, capfd)
    until = time.monotonic() + 10.0
    while (left := _begun(evaluator_nursery)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left, f"processes are left: {left}"
