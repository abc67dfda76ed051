"""Fixtures of the end-to-end tests: the command in this process, on a zygote that is kept; real processes; a guard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e import KeptNursery, Process, Shoal, begun, environment, eventually, shoal_command

import shoal.cli.main
from shoal.launch.nursery import Nursery


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all processes of these tests put temporary files. Must be empty after each test."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="session")
def kept_nursery(temporary: Path) -> Iterator[KeptNursery]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(temporary).items():
            patch.setenv(name, value)
        kept = KeptNursery()
    kept.wait_until_ready()
    yield kept
    kept.really_close()


@pytest.fixture
def shoal_here(
    tmp_path: Path, kept_nursery: KeptNursery, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Shoal]:
    @contextlib.contextmanager
    def head_start(words: object) -> Iterator[Nursery]:
        yield kept_nursery

    monkeypatch.setattr(shoal.cli.main, "head_start", head_start)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    yield Shoal(tmp_path, capfd)
    eventually(lambda: not begun(kept_nursery))  # no stray worker


@pytest.fixture
def start(tmp_path: Path, temporary: Path) -> Iterator[Callable[..., Process]]:
    """Starts real processes in the directory of the test; those that are left are killed."""
    with contextlib.ExitStack() as stack:

        def start(words: list[str], directory: Path = tmp_path, stdin: str | None = None, **more: str) -> Process:
            return stack.enter_context(Process(words, directory, environment(temporary, **more), stdin))

        yield start


@pytest.fixture
def shoal_process(start: Callable[..., Process]) -> Callable[..., Process]:
    """Starts a real ``shoal train``."""
    return lambda *words, **more: start(shoal_command(*words), **more)


@pytest.fixture(autouse=True)
def _no_temporary_files(temporary: Path) -> Iterator[None]:
    yield
    left = [entry.name for entry in temporary.iterdir()]
    assert not left, f"the test has left temporary files: {left}"


@pytest.fixture(autouse=True)
def _no_open_descriptors(request: pytest.FixtureRequest) -> Iterator[None]:
    """A command that ran in this process has given back every descriptor."""
    if "shoal_here" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("kept_nursery")
    before = set(Path("/proc/self/fd").iterdir())
    yield
    after = set(Path("/proc/self/fd").iterdir())
    assert len(after) <= len(before), f"descriptors left open: {after - before}"
