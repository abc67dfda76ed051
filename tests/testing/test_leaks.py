"""The guard of all tests: one that leaves something behind fails, and says what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

LEAKING = """
import subprocess, threading, conftest
conftest._GRACE_S = 0.1
left = []

def test_process():
    left.append(subprocess.Popen(["sleep", "30"]))

def test_zombie():
    left[0].kill()
    left.append(subprocess.Popen(["true"]))

def test_thread():
    enough = threading.Event()
    left.append(threading.Thread(target=enough.wait, args=(30,), name="shoal-test", daemon=True))
    left[-1].start()

def test_shared_memory():
    left.append(open("/dev/shm/{name}", "w"))

def test_rank(ranks):
    left.append(ranks.start(1, lambda session: __import__("signal").pause()))

def test_nothing():
    left[0].wait()
"""


def test_what_is_left_behind_fails_a_test(tmp_path: Path) -> None:
    name = f"shoal-leak-{os.getpid()}"
    (tmp_path / "test_leaking.py").write_text(LEAKING.replace("{name}", name))
    tests = Path(__file__).parents[1]
    arguments = ["-p", "conftest", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=tmp_path,
        )
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)
    for words in ("process", "(sleep 30", "(a zombie", "thread shoal-test", f"/dev/shm/{name}", "a run of ranks"):
        assert words in done.stdout, done.stdout
    assert "6 passed, 5 errors" in done.stdout, done.stdout
