"""Whenever a process is killed, the newest checkpoint is whole."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_cases import assert_belongs_together, save

from shoal.checkpoint.catalog import Catalog

pytestmark = pytest.mark.ranks

DEADLINE_S = 60.0


class Victims:
    """Processes that save, forked from one that has imported torch and run nothing."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        program = str(Path(__file__).with_name("checkpoint_victim.py"))
        self._process = subprocess.Popen(
            [sys.executable, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self._rest = b""

    def start(self, directory: Path, operation: int = 0) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{directory} {operation}\n".encode())
        answers: list[str] = []
        while not answers or not answers[-1].startswith("child "):
            answers.append(self._line())
        self._told = answers[:-1]  # the child may speak before its parent does
        return int(answers[-1].split()[1])

    def wait_for(self, word: str, times: int = 1) -> None:
        """Until the child has said `word` that often."""
        while sum(line.startswith(word) for line in self._told) < times:
            self._told.append(self._line())

    def end(self) -> tuple[int, list[int]]:
        """Exit status of the child, and the steps that it had been told are saved."""
        self.wait_for("ended ")
        *told, ended = (line for line in self._told if line != "ready")
        assert all(line.startswith("saved ") for line in told), told
        return int(ended.split()[1]), [int(line.split()[1]) for line in told]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
            assert ready, "the victim's parent does not answer"
            data = os.read(self._process.stdout.fileno(), 65536)
            assert data, "the victim's parent has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    victims = Victims()
    yield victims
    victims.close()


def newest_step(directory: Path) -> int:
    """The step of the newest checkpoint; fails if one that has a name is damaged or a mixture."""
    checkpoint = Catalog(directory).newest_valid(pytest.fail)
    if checkpoint is None:
        return 0
    assert_belongs_together(checkpoint)
    return checkpoint.cursor.step


def test_killed_at_random_moments(victims: Victims, tmp_path: Path) -> None:
    draw = random.Random(20)
    newest, during_a_save, span_s = 0, 0, 0.0
    for number in range(50):
        pid = victims.start(tmp_path)
        victims.wait_for("ready")
        if number == 0:  # how long saves take here and now
            begin = time.monotonic()
            victims.wait_for("saved", times=5)
            span_s = min(0.25, time.monotonic() - begin)
        time.sleep(draw.uniform(0.0, span_s))  # any moment will do: nothing is waited for
        os.kill(pid, signal.SIGKILL)
        status, told = victims.end()
        assert status == -signal.SIGKILL
        found = newest_step(tmp_path)
        assert found >= max([newest, *told]), "what was said to be saved is not there"
        newest = found
        during_a_save += any(tmp_path.glob(".tmp-*"))
    assert newest > 10, "the victims hardly saved anything"
    assert during_a_save > 10, "the kills came between saves"
    Catalog(tmp_path).clean()
    assert not any(tmp_path.glob(".tmp-*"))


def test_killed_at_every_file_operation(victims: Victims, tmp_path: Path) -> None:
    kinds = set()
    for operation in range(1, 500):
        directory = tmp_path / str(operation)
        for step in (1, 2):
            save(directory, step, test_loss=10 - step)
        victims.start(directory, operation)
        status, told = victims.end()
        found = newest_step(directory)
        kinds.add(found)
        assert found >= max([2, *told])
        every = Catalog(directory).entries()
        assert len(Catalog(directory).records()) == len(every), "a checkpoint is half removed but has its name"
        left = Catalog(directory).clean()
        if status == 0:
            assert (found, left, [entry.step for entry in every]) == (3, [], [2, 3])
            break
        assert status == -signal.SIGKILL
        assert len(left) <= 2
    else:
        pytest.fail("the victim never came through")
    assert operation > 30, "two saves, a removal and a replacement are more operations than that"
    assert kinds == {2, 3}
