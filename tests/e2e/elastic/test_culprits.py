"""Each fault ends in a report that names the worker, the host, the step and the cause: in the summary, in the log and
on the terminal. (A cut link needs hosts: `tests/hosts`.)"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import Done, Run, eventually
from self_hurt import Trials, script

pytestmark = pytest.mark.ranks
HOST = socket.gethostname()
AT = "rank() == 1 and step() == 14 and "


def hurt(trials: Trials, *words: str, **where: str) -> tuple[Done, dict[str, Any]]:
    """Run a script that is hurt once on worker 1 at step 14; returns what the user saw and the fault."""
    done, run = trials.train(script(norm="nn.BatchNorm1d(16),", **where), "--workers", "3", *words)
    (fault,) = run.summary()["faults"]
    (logged,) = run.events("fault")
    assert logged["cause"] == fault["cause"]
    assert logged["member"] == fault["member"] == f"worker 1 on {HOST}"
    assert logged["at_step"] == fault["at_step"] == 14
    assert f"worker 1 of 3 on {HOST} failed at step 14 ({fault['phase']})" in done.err, done.err
    return done, fault


def test_an_exception(trials: Trials) -> None:
    done, fault = hurt(trials, forward=f"if {AT} once('x'): raise ValueError('a bad day')")
    assert done.status == 1
    assert fault["cause"] == "ValueError: a bad day"
    assert fault["phase"] == "forward"
    assert "script.py" in done.err


def test_a_segmentation_fault(trials: Trials) -> None:
    done, fault = hurt(trials, forward=f"{AT} once('x') and __import__('ctypes').string_at(0)")
    assert done.status == 0
    assert fault["cause"] == "killed by signal 11 (SIGSEGV)"
    assert fault["phase"] == "forward"
    assert "script.py" in done.err, "where Python called the library"


def test_a_kill(trials: Trials) -> None:
    done, fault = hurt(trials, forward=f"{AT} die()")
    assert done.status == 0
    assert fault["cause"] == "killed by signal 9 (SIGKILL)"
    assert fault["resumed_s"] is not None


def test_a_freeze(trials: Trials) -> None:
    done, fault = hurt(trials, forward=f"{AT} die(number=signal.SIGSTOP)")
    assert done.status == 0
    assert "SIGSTOP" in fault["cause"]
    assert "script.py" in fault["stack"]
    assert "script.py" in done.err


def test_a_hang_in_the_loss(trials: Trials) -> None:
    hang = f"{AT} once('x') and time.sleep(600)"
    done, fault = hurt(trials, "--set", "elastic.hang_s=2", "--set", "elastic.hang_steps=1", forward=hang)
    assert done.status == 0
    assert "no progress" in fault["cause"]
    assert fault["phase"] == "forward"
    assert "script.py" in fault["stack"]
    assert "script.py" in done.err


BROKEN_DATA = """
class Broken(torch.utils.data.Dataset):
    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        if current().session_is_training and rank() == 1 and step() == 14:
            raise OSError(f"sample {index} cannot be read")
        return tuple(tensor[index] for tensor in self.tensors)
"""


@pytest.mark.parametrize("processes", [0, 1])
def test_a_sample_that_cannot_be_read(trials: Trials, processes: int) -> None:
    text = script(settings=f"loader={{'processes': {processes}}},").replace(
        "train=data(237, 1),", "train=Broken(data(237, 1)),"
    )
    text = text.replace("class Net", BROKEN_DATA.replace("current().session_is_training and ", "") + "\nclass Net")
    if processes:  # a loader reads ahead: any of the next steps is as good
        text = text.replace("rank() == 1 and step() == 14", "index == 101 and step() > 8")
    done, run = trials.train(text, "--workers", "3")
    assert done.status == 1
    (fault,) = run.summary()["faults"]
    assert fault["phase"] == "data"
    assert "cannot be read" in fault["cause"] + done.err
    assert fault["member"].endswith(f"on {HOST}")
    assert f"failed at step {fault['at_step']} (data)" in done.err


def test_shapes_that_differ_between_workers(trials: Trials) -> None:
    text = script().replace("nn.Linear(16, 4)", "nn.Linear(16, 4 + (current().world.rank == 1))")
    done, _ = trials.train(text, "--workers", "3")
    assert done.status == 2
    assert "worker 1 differs from worker 0 in parameters" in done.err


def test_batches_whose_shapes_differ_between_workers(trials: Trials) -> None:
    done, fault = hurt(trials, forward=f"x = x[:, :9] if {AT} once('x') else x")
    assert done.status == 1
    assert fault["phase"] == "forward"
    assert "shapes cannot be multiplied" in fault["cause"]


LIMITS = {  # where control groups are, and what their limit is called: version 2, version 1
    Path("/sys/fs/cgroup/cgroup.controllers"): "memory.max",
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"): "memory.limit_in_bytes",
}


@contextlib.contextmanager
def little_memory() -> Iterator[Path]:
    """A control group with little memory, or a reason why there is none."""
    root, limit = next(((probe.parent, name) for probe, name in LIMITS.items() if probe.exists()), (None, ""))
    if root is None:
        pytest.skip("there are no control groups here to run out of memory in")
    group = root / f"shoal-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(64 << 20))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here to run out of memory in: {error}")
    try:
        yield group
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text().strip())
        group.rmdir()


def test_out_of_memory(trials: Trials) -> None:
    with little_memory() as group:
        move = f"Path('{group}/cgroup.procs').write_text(str(os.getpid()))"
        grow = "[bytearray(os.urandom(1 << 20)) for _ in range(500)]"
        done, fault = hurt(trials, forward=f"{AT} once('x') and ({move}, {grow})")
        assert done.status == 0
        assert "memory" in fault["cause"] + done.err


def test_a_full_disk(trials: Trials, tmp_path: Path) -> None:
    """The first worker writes: it is named, and what is complete stays."""
    full = script(on_step="event.cursor.step == 14 and once('x') and os.symlink('/dev/full', 'run/events.jsonl.x')")
    full = full.replace(
        "class Hurt",
        "import shoal.launch.rundir as rundir\n"
        "def no_space(fd, data):\n    raise OSError(28, 'No space left on device')\n\nclass Hurt",
    ).replace("os.symlink('/dev/full', 'run/events.jsonl.x')", "setattr(rundir, '_write_whole', no_space)")
    done, run = trials.train(full, "--workers", "3")
    assert done.status == 2
    assert "no space left on the disk of" in done.err
    assert Run(run.path).names(), "the checkpoint before is there"
