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

from shoal.core.grains import shares
from shoal.core.order import epoch_order

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
    at = f"at step 14 ({fault['phase']})"
    assert any(f"worker 1 of 3 on {HOST} {what} {at}" in done.err for what in ("failed", "was lost")), done.err
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


BEFORE = """
from {module} import {owner}
right = {owner}.{name}
def first_die(*given):
    {at} die()
    return right(*given)
{owner}.{name} = first_die
trainer.fit()
"""
IN_PHASE = {
    "backward": {"forward": f"x.requires_grad_().register_hook(lambda gradient: {AT} die() or gradient)"},
    "reduce": {
        "fit": BEFORE.format(module="shoal.strategies.allreduce", owner="AllReduceReplica", name="reduce", at=AT)
    },
    "update": {"fit": BEFORE.format(module="torch.optim", owner="SGD", name="step", at=AT)},
    "save": {
        "fit": BEFORE.format(module="shoal.train.saving", owner="Saver", name="save", at=AT),
        "settings": "checkpoint={'every': '14 steps'},",
    },
}


@pytest.mark.parametrize("phase", IN_PHASE)
def test_a_kill_in_each_phase(trials: Trials, phase: str) -> None:
    """Nothing is left to take a stack of: what it was doing is known all the same. (Data, forward: in other tests.)"""
    done, fault = hurt(trials, **IN_PHASE[phase])
    assert done.status == 0
    assert fault["phase"] == phase
    assert fault["cause"] == "killed by signal 9 (SIGKILL)"
    Run(trials.shoal.directory / "run").outcome()


def test_a_freeze(trials: Trials) -> None:
    done, fault = hurt(trials, forward=f"{AT} die(number=signal.SIGSTOP)")
    assert done.status == 0
    assert "SIGSTOP" in fault["cause"]
    assert "script.py" in fault["stack"]
    assert "script.py" in done.err


def test_a_hang_in_the_loss(trials: Trials) -> None:
    hang = f"{AT} once('x') and time.sleep(600)"
    done, fault = hurt(trials, "--set", "elastic.hang_s=2", "--set", "elastic.hang_steps=1", loss=hang)
    assert done.status == 0
    assert "no progress" in fault["cause"]
    assert fault["phase"] == "forward"
    text = (trials.shoal.directory / "script.py").read_text()
    line = text[: text.index(hang)].count("\n") + 1
    for told in (fault["stack"], done.err):
        assert f'"script.py", line {line}, in forward' in told, "the line of the loss"


def sample_of_worker_1_at_step_14() -> int:
    """Step 14 is the third of the second epoch; a batch of 20 has four grains of 5."""
    grains = shares(4, (1.0, 1.0, 1.0))[1]
    return int(epoch_order(0, 1, 237)[2 * 20 + 5 * grains.start])


@pytest.mark.parametrize("processes", [0, 1])
def test_a_sample_that_cannot_be_read(trials: Trials, processes: int) -> None:
    """It could, in the first epoch. A reader that is ahead of the step meets it earlier than its worker."""
    sample = sample_of_worker_1_at_step_14()
    broken = f"if index == {sample} and not once('read'): raise OSError(f'sample {{index}} is gone')"
    done, fault = hurt(trials, sample=broken, settings=f"loader={{'processes': {processes}}},")
    assert done.status == 1
    assert fault["phase"] == "data"
    assert fault["cause"] == f"OSError: sample {sample} is gone"
    assert f"while reading sample {sample} of the train data" in done.err
    assert "in __getitem__" in done.err


def test_shapes_that_differ_between_workers(trials: Trials) -> None:
    """It is known before the first step; the run directory tells of it all the same, and is of use afterwards."""
    text = script().replace("nn.Linear(16, 4)", "nn.Linear(16, 4 + (current().world.rank == 1))")
    done, run = trials.train(text, "--workers", "3")
    assert run.summary()["status"] == "failed"
    (fault,) = run.summary()["faults"]
    (logged,) = run.events("fault")
    assert logged.items() >= {**fault, "resumed_s": None}.items()
    assert fault["member"] == f"worker 1 on {HOST}"
    assert (fault["at_step"], fault["phase"]) == (0, "meet")
    assert fault["cause"].startswith(f"worker 1 on {HOST} differs from worker 0 on {HOST} in parameters")
    assert done.message() == fault["cause"]
    done, run = trials.train(script(), "--workers", "3")
    assert done.status == 0, done.err
    run.outcome()


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
        assert fault["cause"] == "ended by the kernel: out of memory (SIGKILL)"
        assert fault["cause"] in done.err


NO_SPACE = """
import shoal.launch.rundir as rundir

write_whole = rundir._write_whole

def no_space(fd, data):
    if b'"kind":"step"' in data:  # others are written when a checkpoint happens to be complete
        raise OSError(28, "No space left on device")
    write_whole(fd, data)

class Hurt"""


def test_a_full_disk(trials: Trials) -> None:
    """The first worker writes: it is named, and what is complete stays. (One that really is full: `test_e2e_disk`.)"""
    full = "event.cursor.step == 14 and setattr(rundir, '_write_whole', no_space)"
    done, run = trials.train(script(on_step=full).replace("\nclass Hurt", NO_SPACE), "--workers", "3")
    assert done.status == 2
    (fault,) = run.summary()["faults"]
    (logged,) = run.events("fault")
    named = {"member": f"worker 0 on {HOST}", "at_step": 14, "phase": "save"}
    assert named.items() <= fault.items()
    assert {**named, "cause": fault["cause"]}.items() <= logged.items()
    assert fault["cause"].startswith(f"no space left on the disk of {run.path}: free some, then")
    block = f"shoal: worker 0 of 3 on {HOST} failed at step 14 (save)\n\n{fault['cause']}\n"
    assert done.err.startswith(block), done.err
    assert "Traceback" not in done.err
    assert '  File "' not in done.err
    assert run.names(), "the checkpoint before is there"
