"""A run that breaks: the user's own exceptions, workers that are killed, a script that leaves."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from e2e import START_AND_END_S, Shoal
from e2e_script import program

pytestmark = pytest.mark.ranks

HOST = os.uname().nodename
AT_STEP_7 = """
class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(10, 4), 0

    def forward(self, x):
        if shoal.launch.session.current().control.progress(rank())[0] == 7:
            misbehave(x)
        return self.inner(x)

def misbehave(x):
"""


def bad_at_step_7(body: str) -> str:
    settings = "epochs=2, checkpoint={'every': '3 steps'},"
    return program(before=AT_STEP_7 + f"    {body}\n", model="Bad()", settings=settings)


def test_an_exception_on_one_worker(shoal_here: Shoal) -> None:
    shoal_here.write(bad_at_step_7("if rank() == 1: raise ValueError('bad pixel')"))
    done = shoal_here.train("--workers", "3", "--run-dir", "run")
    assert done.status == 1
    assert done.seconds < START_AND_END_S
    assert done.err.startswith(f"shoal: worker 1 of 3 on {HOST} failed at step 7 (forward)\n\n  File ")
    assert done.err.count("ValueError: bad pixel") == 1
    assert 'script.py", line' in done.err
    assert "in misbehave" in done.err
    for hidden in ("shoal/", "site-packages", "PeerLost", "runpy", "Traceback"):
        assert hidden not in done.err
    assert "shoal: the same command with --run-dir run goes on from the last checkpoint" in done.err
    summary = shoal_here.run.summary()
    assert summary["status"] == "failed"
    (fault,) = summary["faults"]
    assert (fault["at_step"], fault["cause"]) == (7, "ValueError: bad pixel")
    assert fault["member"].startswith("worker 1 on ")
    assert shoal_here.run.events("fault")[-1]["cause"] == "ValueError: bad pixel"
    # mended, it goes on, and nothing is lost
    shoal_here.write(bad_at_step_7("pass"))
    again = shoal_here.train("--workers", "3", "--run-dir", "run")
    assert again.status == 0, again
    assert "going on from step 6" in again.out
    shoal_here.run.outcome()


def test_an_exception_on_all_workers_is_shown_once(shoal_here: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SETTLE_S", "CAUSE_S"):
        monkeypatch.setattr(f"shoal.launch.supervisor.{name}", 60.0)  # the last one may take its time to fail, too
    shoal_here.write(bad_at_step_7("raise ValueError('bad pixel')"))
    done = shoal_here.train("--workers", "3", "--run-dir", "run")
    assert done.status == 1
    assert (done.err + done.out).count("\nValueError: bad pixel") == 1
    assert f"shoal: worker 0 (and 2 others) of 3 on {HOST} failed at step 7 (forward)" in done.err
    assert "failed at step 7 of 24" in done.out


def test_an_exception_before_there_is_a_trainer(shoal_here: Shoal) -> None:
    shoal_here.write(program(before="import no_such_module"))
    done = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert done.status == 1
    assert done.err.count("ModuleNotFoundError: No module named 'no_such_module'") == 1
    assert shoal_here.files() == {"script.py"}


@pytest.mark.parametrize("processes", [0, 1])
def test_data_that_cannot_be_read(shoal_here: Shoal, processes: int) -> None:
    shoal_here.write(
        program(
            before="""
class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 237
    def __getitem__(self, index):
        if index == 200:
            raise OSError("image 200 is broken")
        return torch.zeros(10), 1
""",
            train="Images()",
        )
    )
    done = shoal_here.train("--workers", "2", "--run-dir", "run", "--set", f"loader.processes={processes}")
    assert done.status == 1
    assert done.seconds < START_AND_END_S
    assert done.err.count("OSError: image 200 is broken") == 1
    assert "in __getitem__" in done.err
    assert "while reading sample 200 of the train data" in done.err
    assert "shoal/" not in done.err


@pytest.mark.parametrize(("where", "step"), [("test", 12), ("metric", 12), ("callback", 4), ("optimizer", 0)])
def test_exceptions_elsewhere_in_the_users_code(shoal_here: Shoal, where: str, step: int) -> None:
    before = """
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 61
    def __getitem__(self, index):
        raise ZeroDivisionError("here")

def metric(output, target):
    raise ZeroDivisionError("here")

def optimizer(parameters):
    raise ZeroDivisionError("here")

class Callback(shoal.callbacks.Callback):
    def on_step(self, event, run):
        if event.cursor.step == 4:
            raise ZeroDivisionError("here")
"""
    wrong = {
        "test": {"test": "Broken()"},
        "metric": {"settings": "epochs=1, metrics={'m': metric}"},
        "callback": {"settings": "epochs=1, callbacks=[Callback()]"},
        "optimizer": {"optimizer": "optimizer"},
    }[where]
    shoal_here.write(program(before=before, **wrong))
    done = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert done.status == 1
    assert done.seconds < START_AND_END_S
    assert done.err.count("ZeroDivisionError: here") == 1
    assert "shoal/" not in done.err
    if where == "optimizer":
        assert shoal_here.files() == {"script.py"}
    else:
        assert shoal_here.run.summary()["status"] == "failed"
        assert f"failed at step {step} of" in done.out


@pytest.mark.parametrize(("leave", "status"), [("sys.exit(3)", 3), ("sys.exit('no data')", 1), ("os._exit(4)", 1)])
def test_a_script_that_leaves(shoal_here: Shoal, leave: str, status: int) -> None:
    shoal_here.write(program(fit=leave))
    done = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert done.status == status
    assert "Traceback" not in done.err
    told = {3: "the script ended itself with status 3", 1: "no data" if "data" in leave else "ended with status 4"}
    assert told[status] in done.err
    assert shoal_here.files() == {"script.py"}


def test_a_script_that_is_content_with_nothing(shoal_here: Shoal) -> None:
    shoal_here.write(program(fit="trainer.fit(); sys.exit()"))
    done = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize(
    ("signal", "words"),
    [
        ("SIGKILL", "was lost at step 7 (forward): killed by signal 9 (SIGKILL); goes on with 1 worker; "),
        ("SIGSEGV", "failed at step 7 (forward)\n\nkilled by signal 11 (SIGSEGV). A compiled library has failed."),
    ],
)
def test_a_worker_that_is_killed(shoal_here: Shoal, signal: str, words: str) -> None:
    shoal_here.write(bad_at_step_7(f"if rank() == 1: os.kill(os.getpid(), signal.{signal})"))
    # slowly enough that there is something left to do for the one that takes its place
    done = shoal_here.train("--workers", "2", "--run-dir", "run", "--set", "elastic.pace_s=0.05")
    assert done.status == 0, done
    assert done.err.startswith(f"shoal: worker 1 of 2 on {HOST} {words}"), done.err
    if signal == "SIGSEGV":  # the last words of the worker: where Python was
        assert "in misbehave" in done.err
    assert "goes on with 1 worker; a replacement is started (1 of 10)" in done.err
    assert f"worker 1 on {HOST} has joined: 2 workers on 1 host now" in done.out
    (fault,) = shoal_here.run.summary()["faults"]
    assert fault["member"] == f"worker 1 on {HOST}"
    assert fault["cause"] == f"killed by signal {9 if signal == 'SIGKILL' else 11} ({signal})"
    assert fault["detected_s"] < 2
    assert fault["detected_s"] <= fault["resumed_s"] < 10
    shoal_here.run.outcome()


def test_a_worker_that_hangs_is_named(shoal_here: Shoal) -> None:
    shoal_here.write(bad_at_step_7("if rank() == 1: time.sleep(600)"))
    done = shoal_here.train("--workers", "2", "--run-dir", "run", "--set", "comm.timeout_s=5")
    assert done.status == 1
    (waited_s,) = re.findall(r"waited (\d+\.\d) s", done.err)
    assert 5.0 <= float(waited_s) < 60, "by its own deadline, not by the end of what it waits for"
    assert "worker 1" in done.err
    assert "Traceback" not in done.err


def test_the_output_of_workers(shoal_here: Shoal, tmp_path: Path) -> None:
    """Output of the workers: the first one's is shown, the others' is in their logs, and both after the end too."""
    shoal_here.write(program(fit="print('hello from', rank(), flush=True); trainer.fit(); print('bye from', rank())"))
    done = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert "hello from 0" in done.out
    assert "bye from 0" in done.out
    assert "from 1" not in done.out
    assert (tmp_path / "run" / "logs" / "worker-1.log").read_text() == "hello from 1\nbye from 1\n"
