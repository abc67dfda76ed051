"""Disks that are full, or not ours to write to."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import Process, Run, Shoal, shoal_command
from e2e_script import SCRIPT, program

from shoal.launch.reserve import SIZE_BYTES

pytestmark = pytest.mark.ranks
HOST = socket.gethostname()


@pytest.fixture
def tiny_disk(make_disk: Callable[[str], Path]) -> Path:
    return make_disk("512k")


def fill(disk: Path, free_bytes: int) -> Path:
    """Leave only so much space."""
    ballast = disk / "ballast"
    free = shutil.disk_usage(disk).free
    ballast.write_bytes(b"x" * max(0, free - free_bytes))
    return ballast


def test_full_from_the_start(shoal_here: Shoal, tiny_disk: Path) -> None:
    shoal_here.write(program())
    fill(tiny_disk, 0)
    message = shoal_here.train("--workers", "2", "--run-dir", "disk/run").message()
    assert message == (
        f"no space left on the disk of {tiny_disk / 'run'}: free some, then run the same command again to go on"
    )
    assert [entry.name for entry in tiny_disk.iterdir()] == ["ballast"]


@pytest.mark.parametrize("free_bytes", [SIZE_BYTES - 384, 40_000, 80_000])
def test_full_in_the_middle(shoal_here: Shoal, tiny_disk: Path, free_bytes: int) -> None:
    """Whatever is written first when no space is left: events, a checkpoint, a history, a log. What is held back for it
    suffices to note the end, unless there never was so much."""
    shoal_here.write(SCRIPT)
    words = ("--workers", "2", "--epochs", "12")
    assert shoal_here.train(*words, "--run-dir", "whole").status == 0
    ballast = fill(tiny_disk, free_bytes)
    done = shoal_here.train(*words, "--run-dir", "disk/run", "--set", "checkpoint.every=1 step")
    assert done.status == 2, done
    assert "Traceback" not in done.err
    assert '  File "' not in done.err
    cause = r"no space left on the disk of \S*/disk/run\S*: free some, then run the same command again to go on"
    said = re.match(rf"shoal: worker 0 of 2 on {HOST} failed at step (\d+) \(save\)\n\n({cause})\n", done.err)
    assert said is not None, done.err
    run = Run(tiny_disk / "run")
    if free_bytes > SIZE_BYTES:
        assert done.err.count("no space left") == 1, "it could be noted"
        named = {"member": f"worker 0 on {HOST}", "at_step": int(said[1]), "phase": "save", "cause": said[2]}
        (fault,), (logged,) = run.summary()["faults"], run.events("fault")
        assert named.items() <= fault.items()
        assert named.items() <= logged.items()
    assert not list(run.path.glob(".reserve*")), "nothing is held back any more"
    ballast.unlink()
    assert shoal_here.train(*words, "--run-dir", "disk/run").status == 0
    assert run.outcome() == Run(shoal_here.directory / "whole").outcome()


def test_a_directory_that_is_not_ours(tmp_path: Path, start: Callable[..., Process]) -> None:
    """Root may write anywhere, so root tries it without that privilege."""
    (tmp_path / "script.py").write_text(program())
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    words = shoal_command("script.py", "--workers", "2", "--run-dir", "locked/run")
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("running as root, and there is no setpriv to give up its privileges")
        words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *words]
    done = start(words).end()
    assert done.message() == f"{locked / 'run'} cannot be written (Permission denied): choose another --run-dir"
    assert not list(locked.iterdir())
