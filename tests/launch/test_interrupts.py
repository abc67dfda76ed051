"""Ctrl-C, SIGTERM and SIGKILL on a real launcher process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launches import PRELUDE, eventually

pytestmark = pytest.mark.ranks

DRIVER = """
import sys
sys.argv[0] = "-m"
from shoal.launch.job import Job
from shoal.launch.launcher import Launcher
from shoal.launch.nursery import Nursery
import shoal.launch.supervisor as supervisor
supervisor.STOP_S = float(sys.argv[3])
nursery = Nursery(("torch", "shoal.launch.worker"))
outcome = Launcher(Job(int(sys.argv[2]), sys.argv[1], threads=1), nursery).run()
print("run", outcome.run_dir, outcome.summary, flush=True)
sys.exit(outcome.status)
"""
BEGIN = """
open(f"pid-{rank}.tmp", "w").write(str(os.getpid()))
os.rename(f"pid-{rank}.tmp", f"pid-{rank}")
if rank == 0:
    while not all(os.path.exists(f"pid-{r}") for r in range(size)): time.sleep(0.002)
"""
STARTED = """
if rank == 0:
    os.makedirs("run/logs")
    session.report({"type": "started", "run_dir": os.path.abspath("run")})
    open("started", "w").close()
"""
OBEDIENT = """
while not control.stop_requested: time.sleep(0.002)
if rank == 0:
    session.report({"type": "finished", "summary": {"status": "interrupted", "steps": 3}})
"""
DEAF = """
while True: signal.pause()
"""


class Driven:
    def __init__(self, process: subprocess.Popen[str], directory: Path, workers: int) -> None:
        self.process, self.directory, self._workers = process, directory, workers

    def pids(self) -> list[int]:
        files = [self.directory / f"pid-{rank}" for rank in range(self._workers)]
        eventually(lambda: self.alive() and all(file.exists() for file in files))
        return [int(file.read_text()) for file in files]

    def alive(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        return True

    def started(self) -> list[int]:
        pids = self.pids()
        eventually((self.directory / "started").exists)
        return pids

    def said(self, words: str) -> None:
        """Wait until the launcher has written these words to standard error."""
        eventually(lambda: words in (self.directory / "stderr").read_text())

    def end(self) -> tuple[int, str, str]:
        out, _ = self.process.communicate(timeout=120)
        return self.process.returncode, out, (self.directory / "stderr").read_text()


@contextmanager
def driven(directory: Path, body: str, workers: int = 2, stop_s: float = 30.0) -> Iterator[Driven]:
    """A launcher in a process group of its own, as a shell would start it."""
    (directory / "script.py").write_text(PRELUDE + body)
    root = str(Path(__file__).parents[2])
    with (directory / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, "script.py", str(workers), str(stop_s)],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            process_group=0,
        )
    try:
        yield Driven(process, directory, workers)
    finally:
        process.kill()
        process.communicate(timeout=60)


def gone(pidfds: list[int], deadline_s: float = 60.0) -> bool:
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(deadline_s * 1000):
            return False
    return True


def vanished(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_first_interrupt_lets_the_workers_save(tmp_path: Path) -> None:
    with driven(tmp_path, BEGIN + STARTED + OBEDIENT) as run:
        pids = run.started()
        os.killpg(run.process.pid, signal.SIGINT)  # as the terminal does
        status, out, err = run.end()
    assert status == 130
    assert err == "shoal: stopping after this step: saving … (Ctrl-C again to end at once)\n"
    assert "'status': 'interrupted'" in out
    assert vanished(pids)


def test_sigterm_does_the_same(tmp_path: Path) -> None:
    with driven(tmp_path, BEGIN + STARTED + OBEDIENT) as run:
        run.started()
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.end()[0] == 143


def test_the_second_interrupt_ends_at_once_and_says_how_to_go_on(tmp_path: Path) -> None:
    with driven(tmp_path, BEGIN + STARTED + DEAF) as run:
        pids = run.started()
        os.kill(run.process.pid, signal.SIGINT)
        run.said("stopping after this step")
        os.kill(run.process.pid, signal.SIGINT)
        status, _, err = run.end()
    assert status == 130
    assert "--run-dir run goes on from the last checkpoint" in err
    assert vanished(pids)


def test_an_interrupt_before_anything_is_to_be_saved_ends_at_once(tmp_path: Path) -> None:
    with driven(tmp_path, BEGIN + DEAF) as run:
        pids = run.pids()
        os.kill(run.process.pid, signal.SIGINT)
        status, _, err = run.end()
    assert status == 130
    assert "Traceback" not in err
    assert vanished(pids)


def test_workers_that_do_not_stop_are_ended(tmp_path: Path) -> None:
    with driven(tmp_path, BEGIN + STARTED + DEAF, stop_s=0.2) as run:
        pids = run.started()
        os.kill(run.process.pid, signal.SIGINT)
        status, _, err = run.end()
    assert status == 130
    assert "did not stop within" in err
    assert vanished(pids)


def test_a_run_that_was_complete_anyway_is_complete(tmp_path: Path) -> None:
    body = BEGIN + STARTED + OBEDIENT.replace("interrupted", "completed")
    with driven(tmp_path, body) as run:
        run.started()
        os.kill(run.process.pid, signal.SIGINT)
        assert run.end()[0] == 0


@pytest.mark.parametrize("body", [BEGIN + DEAF, BEGIN + STARTED + "signal.pause() if rank else time.sleep(600)"])
def test_nothing_outlives_a_killed_launcher(tmp_path: Path, body: str) -> None:
    with driven(tmp_path, body, workers=3) as run:
        pids = run.pids()
        zygote = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        pidfds = [os.pidfd_open(pid) for pid in (*pids, zygote)]
        try:
            os.kill(run.process.pid, signal.SIGKILL)
            assert gone(pidfds)
        finally:
            for pidfd in pidfds:
                os.close(pidfd)


def test_a_frozen_worker_is_ended_by_a_killed_launcher_too(tmp_path: Path) -> None:
    with driven(tmp_path, BEGIN + DEAF) as run:
        pids = run.pids()
        os.kill(pids[1], signal.SIGSTOP)
        pidfds = [os.pidfd_open(pid) for pid in pids]
        try:
            os.kill(run.process.pid, signal.SIGKILL)
            assert gone(pidfds)
        finally:
            for pidfd in pidfds:
                os.close(pidfd)
