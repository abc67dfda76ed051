"""Ctrl-C on real commands: saves, cleans up, says how to go on; twice ends at once."""

from __future__ import annotations

import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable

import pytest
from e2e import Process, Run, Shoal, descendants, eventually
from e2e_script import SCRIPT

pytestmark = pytest.mark.ranks


def shown_command(out: str) -> list[str]:
    """What the user is told to type."""
    (line,) = (line for line in out.splitlines() if line.strip().startswith("to go on"))
    return shlex.split(line.strip().removeprefix("to go on"))


def test_what_is_shown_can_be_typed(shoal_here: Shoal, shoal_process: Callable[..., Process]) -> None:
    """With flags, a file and arguments of the script's own: all of them belong to the run."""
    shoal_here.write(SCRIPT)
    shoal_here.write("clip: {norm: 0.5}\n", "my settings.yaml")
    asked = ("--workers", "2", "--seed", "5", "--set", "checkpoint.every=7 steps", "--config", "my settings.yaml")
    ours = ("--", "--model", "norm", "--optimizer", "adam")
    assert shoal_here.train(*asked, "--run-dir", "whole", *ours).status == 0
    done = shoal_process("script.py", *asked, "--run-dir", "run", *ours, "--signal", "15").end()
    assert done.status == 130
    assert done.err == "shoal: stopping after this step: saving … (Ctrl-C again to end at once)\n"
    assert "interrupted at step 16 of 36" in done.out
    assert "checkpoint     step 16" in done.out
    command = shown_command(done.out)
    assert command[:2] == ["shoal", "train"]
    words = [word for word in command[3:] if word not in ("--signal", "15")]
    assert shoal_here.train(*words, script=command[2]).status == 0
    assert shoal_here.run.outcome() == Run(shoal_here.directory / "whole").outcome()


def test_twice_ends_at_once(shoal_here: Shoal, shoal_process: Callable[..., Process]) -> None:
    shoal_here.write(SCRIPT)
    words = ("script.py", "--workers", "2", "--run-dir", "run", "--set", "checkpoint.every=4 steps")
    process = shoal_process(*words, "--", "--signal", "15", "--hang")
    eventually(lambda: "stopping after this step" in process.err and len(descendants(process.pid)) == 4)
    eventually(lambda: "step-00000012" in shoal_here.run.names())  # written in the background
    process.kill(signal.SIGINT)
    done = process.end()
    assert done.status == 130
    assert "shoal: ended at once, without saving" in done.err
    assert "the same command with --run-dir run goes on from the last checkpoint" in done.err
    assert "Traceback" not in done.err
    assert shoal_here.run.names()[-1] == "step-00000012"
    assert shoal_here.train("--workers", "2", "--run-dir", "whole").status == 0
    assert shoal_here.train("--workers", "2", "--run-dir", "run").status == 0
    assert shoal_here.run.outcome() == Run(shoal_here.directory / "whole").outcome()


STUCK = """
import os, time
from pathlib import Path
import shoal, torch
from torch import nn
from shoal.launch.session import current

class Net(nn.Linear):
    def forward(self, x):
        rank, control = current().rank, current().control
        if self.training and WHO and control.progress(current().world.seat)[0] == 7 and not Path("stuck").exists():
            Path(f"stuck-{rank}").touch()
            while True: HOW
        return super().forward(x)

data = (torch.randn(60, 8, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 3)
shoal.Trainer(
    Net(8, 3), nn.CrossEntropyLoss(), lambda p: torch.optim.SGD(p, lr=0.1), data, global_batch=12, epochs=3,
    checkpoint={"every": "5 steps"},
).fit()
"""


@pytest.mark.parametrize(
    ("who", "how", "stuck"),
    [("rank == 1", "time.sleep(600)", [1]), ("rank == 1", "pass", [1]), ("True", "time.sleep(600)", [0, 1, 2])],
    ids=["one", "one-busy", "all"],
)
def test_a_run_that_does_not_get_on_is_not_waited_for(
    shoal_here: Shoal, shoal_process: Callable[..., Process], who: str, how: str, stuck: list[int]
) -> None:
    """One worker of three does nothing in the middle of a step, or computes without end, and the others wait for it; or
    all of them do nothing. Where some are left, they end the step and save."""
    shoal_here.write(STUCK.replace("WHO", who).replace("HOW", how))
    words = ("script.py", "--workers", "3", "--run-dir", "run")
    process = shoal_process(*words)
    marks = [shoal_here.directory / f"stuck-{rank}" for rank in stuck]
    eventually(lambda: all(mark.exists() for mark in marks))
    eventually(lambda: "step-00000005" in shoal_here.run.names())
    (shoal_here.directory / "stuck").touch()  # once is enough
    asked_s = time.monotonic()
    process.kill(signal.SIGINT)
    done = process.end()
    assert time.monotonic() - asked_s < 15, "4 to 7 s on a calm machine; 30 where a step moves"
    assert done.status == 130, done
    if stuck == [1]:
        assert f"worker 1 of 3 on {socket.gethostname()} was lost at step 7 (forward): no progress for" in done.err
        assert "in forward after the run was asked to stop" in done.err
        assert "interrupted at step" in done.out
    else:
        who = f"worker 0, worker 1, worker 2 on {socket.gethostname()}: no progress at step 7 (forward)"
        assert f"shoal: ended at once, without saving ({who})" in done.err
        assert "the same command with --run-dir run goes on from the last checkpoint" in done.err
    assert (shoal_here.run.names()[-1] > "step-00000005") == (stuck == [1])
    assert shoal_here.train(*words[1:]).status == 0
    assert shoal_here.run.summary()["coverage"] == {"expected": 180, "once": 180, "missed": 0, "repeated": 0}


@pytest.mark.parametrize("hang", [False, True])
def test_a_plain_script(shoal_here: Shoal, start: Callable[..., Process], hang: bool) -> None:
    """``python script.py``: the same, in one process."""
    shoal_here.write(SCRIPT.replace("trainer.fit()", "trainer.fit(run_dir='run'); print('AFTER')"))
    process = start([sys.executable, "script.py", "--signal", "15", *(["--hang"] if hang else [])])
    if hang:
        eventually(lambda: "stopping after this step" in process.err and process.running())
        process.kill(signal.SIGINT)
    done = process.end()
    assert done.status == 130, done
    assert "AFTER" not in done.out
    assert "Traceback" not in done.err
    assert "shoal: stopping after this step: saving … (Ctrl-C again to end at once)" in done.err
    assert ("shoal: ended at once, without saving" in done.err) == hang
    assert "interrupted at step" in done.out
    command = shown_command(done.out)
    assert command == ["shoal", "train", "script.py", "--run-dir", str(shoal_here.run.path), "--", "--signal", "15",
                       *(["--hang"] if hang else [])]  # fmt: skip
    assert shoal_here.run.names()[-1] == ("step-00000012" if hang else "step-00000016")
    assert shoal_here.train("--run-dir", "whole").status == 0
    assert "AFTER" in shoal_here.train("--run-dir", "run").out
    assert shoal_here.run.outcome() == Run(shoal_here.directory / "whole").outcome()


LOOP = """
import os, signal, shoal, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 3)
data = (torch.randn(60, 8), torch.randint(0, 3, (60,)))
run = shoal.prepare(
    model, lambda p: torch.optim.SGD(p, lr=0.1), nn.CrossEntropyLoss(), global_batch=10, run_dir="run",
    checkpoint={"every": "2 epochs"},
)
for epoch in range(4):
    for at, batch in enumerate(run.batches(data)):
        run.step(batch)
        if (epoch, at) == (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
print("AFTER")
"""


@pytest.mark.ranks
def test_a_loop_of_ones_own(shoal_here: Shoal, start: Callable[..., Process]) -> None:
    """A prepared run under ``python`` saves too: the step under way and the one that learns of it are kept."""
    shoal_here.write(LOOP)
    done = start([sys.executable, "script.py"]).end()
    assert done.status == 130, done
    assert "AFTER" not in done.out
    assert "Traceback" not in done.err
    assert shoal_here.run.names()[-1] == "step-00000010"  # told in the facts of the step after
