"""Fixtures of the tests of evaluators."""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from evaluator_runs import KeptNursery, Runs

import shoal.cli.main
from shoal.launch.nursery import Nursery


@pytest.fixture(scope="session")
def evaluator_nursery() -> Iterator[KeptNursery]:
    kept = KeptNursery.ready_made()
    yield kept
    kept.really_close()


def _children(pid: int) -> str:
    found = ""
    for task in glob.glob(f"/proc/{pid}/task/*/children"):  # noqa: PTH207 - Path.glob fails where a process ends under it
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += Path(task).read_text()
    return found


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
    while (left := _children(evaluator_nursery.pid)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left, f"processes are left: {left}"
