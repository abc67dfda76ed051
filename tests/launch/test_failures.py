"""How a run fails: what is shown, with which status, how soon, and what its directory says afterwards."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from launches import Launches

from shoal.core.config import ElasticSettings

pytestmark = pytest.mark.ranks

HOST = socket.gethostname()

WAIT_FOR_ABORT = """
def wait_for_abort():
    from shoal.core.errors import PeerLost
    until = time.monotonic() + 120
    while not control.aborted:
        if time.monotonic() > until: raise TimeoutError
        time.sleep(0.002)
    raise PeerLost("worker 1 is gone")
"""


def started(directory: Path) -> str:
    """The part of a script by which the first worker makes a run directory and tells of it."""
    run_dir = directory / "run"
    return f"""
if rank == 0:
    os.makedirs({str(run_dir / "logs")!r}, exist_ok=True)
    session.report({{"type": "started", "run_dir": {str(run_dir)!r}}})
"""


def since_the_failure(launches: Launches) -> float:
    """For how long the run has gone on: how long the start took is another matter."""
    return time.monotonic() - float((launches.directory / "failed-at").read_text())


def events(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "run" / "events.jsonl").read_text().splitlines()]


def test_an_exception_on_one_worker_shows_its_frames_once(
    launches: Launches, capfd: pytest.CaptureFixture[str]
) -> None:
    body = (
        WAIT_FOR_ABORT
        + started(launches.directory)
        + """
control.enter(rank, 17, "forward")
def loss(x):
    open("failed-at", "w").write(str(time.monotonic()))
    raise ValueError("bad")
def step():
    import torch
    module = torch.nn.Module(); module.forward = loss
    module(3)
step() if rank == 1 else wait_for_abort()
"""
    )
    outcome = launches.run(body, workers=3)
    assert outcome.status == 1
    assert since_the_failure(launches) < 5
    shown = capfd.readouterr().err
    assert shown.startswith(f"shoal: worker 1 of 3 on {HOST} failed at step 17 (forward)\n\n  File ")
    assert shown.count("ValueError: bad") == 1
    assert "in loss\n" in shown
    assert "in step\n" in shown
    for hidden in ("runpy", "shoal/launch", "nn/modules", "PeerLost", "is gone"):
        assert hidden not in shown
    assert "the same command with --run-dir run goes on" in shown
    fault, lost = events(launches.directory)
    assert (fault["kind"], fault["at_step"], fault["cause"], fault["phase"]) == (
        "fault", 17, "ValueError: bad", "forward",
    )  # fmt: skip
    assert 0 <= fault["detected_s"] < 1
    assert (lost["kind"], lost["rank"], lost["cause"]) == ("member_lost", 1, "ValueError: bad")
    assert lost["pid"] > 0
    summary = json.loads((launches.directory / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert [(one["at_step"], one["cause"]) for one in summary["faults"]] == [(17, "ValueError: bad")]
    assert summary["faults"][0]["member"].startswith("worker 1 on ")
    assert outcome.summary == summary


def test_the_same_exception_everywhere_is_shown_once(
    launches: Launches, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SETTLE_S", "CAUSE_S"):
        monkeypatch.setattr(f"shoal.launch.supervisor.{name}", 60.0)  # the last one may take its time to fail, too
    assert launches.run("raise KeyError('weight')", workers=4).status == 1
    shown = capfd.readouterr().err
    assert shown.count("KeyError: 'weight'") == 1
    assert f"shoal: worker 0 (and 3 others) of 4 on {HOST} failed before its first step" in shown


def test_causes_and_notes_are_shown(launches: Launches, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
try:
    {}["a"]
except KeyError as error:
    problem = RuntimeError("no such file")
    problem.add_note("look into the manual")
    raise problem from error
"""
    launches.run(body)
    shown = capfd.readouterr().err
    assert "KeyError: 'a'" in shown
    assert "direct cause" in shown
    assert "RuntimeError: no such file\nlook into the manual" in shown
    assert "shoal/launch" not in shown


def test_a_syntax_error_is_shown_as_python_does(launches: Launches, capfd: pytest.CaptureFixture[str]) -> None:
    assert launches.run("def f(:\n    pass\n", prelude="", workers=2).status == 1
    shown = capfd.readouterr().err
    assert f'File "{launches.directory / "script.py"}", line 1' in shown
    assert "SyntaxError: invalid syntax" in shown
    assert "runpy" not in shown
    assert "worker.py" not in shown


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGSEGV, "signal 11 (SIGSEGV)"), (signal.SIGKILL, "out of memory"), (signal.SIGUSR1, "signal 10")],
)
def test_a_worker_killed_by_a_signal(
    launches: Launches, capfd: pytest.CaptureFixture[str], number: int, words: str
) -> None:
    body = (
        WAIT_FOR_ABORT
        + started(launches.directory)
        + f"""
if rank == 1:
    print("the last thing I said")
    control.enter(rank, 4, "backward")
    os.kill(os.getpid(), {int(number)})
wait_for_abort()
"""
    )
    terms = ElasticSettings(min_workers=2, max_restarts=0)
    outcome = launches.run(body, workers=2, elastic=terms)
    assert outcome.status == 1
    shown = capfd.readouterr().err
    assert "shoal: worker 1 of 2 on " in shown
    assert "at step 4 (backward)" in shown
    assert words in shown
    assert "the last thing I said" in shown
    assert "PeerLost" not in shown
    assert outcome.summary is not None
    assert outcome.summary["faults"][0]["cause"].startswith(f"killed by signal {int(number)}")


def test_a_segmentation_fault_leaves_the_python_frames_in_the_output(
    launches: Launches, capfd: pytest.CaptureFixture[str]
) -> None:
    body = "def broken():\n    os.kill(os.getpid(), signal.SIGSEGV)\nbroken()\n"
    launches.run(body)
    shown = capfd.readouterr().err
    assert "Fatal Python error: Segmentation fault" in shown
    assert "in broken" in shown


def test_a_worker_that_hangs_is_ended_with_the_others(launches: Launches) -> None:
    body = started(launches.directory) + (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "control.enter(rank, 1, 'data')\n"
        "while rank == 0 and any(control.progress(r)[0] == 0 for r in range(size)): time.sleep(0.002)\n"
        "if rank == 0:\n"
        "    open('failed-at', 'w').write(str(time.monotonic()))\n"
        "    raise ValueError('enough')\n"
        "while True: signal.pause()\n"
    )
    assert launches.run(body, workers=2).status == 1
    assert since_the_failure(launches) < 5


def test_the_first_worker_may_complete_what_it_writes(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.launch.supervisor.FLUSH_S", 60.0)  # on a busy machine it may need more than it says
    body = (
        started(launches.directory)
        + """
if rank == 1:
    raise ValueError("bad")
while not control.aborted: time.sleep(0.002)
until = time.monotonic() + 1.2
while time.monotonic() < until: time.sleep(0.05)
open("complete", "w").close()
"""
    )
    assert launches.run(body, workers=2).status == 1
    assert (launches.directory / "complete").exists()


def test_when_all_blame_another_they_are_shown(launches: Launches, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
from shoal.core.errors import CollectiveTimeout
raise CollectiveTimeout("the sum of gradients", [1], 3.0)
"""
    assert launches.run(body, workers=2).status == 1
    assert "waited 3.0 s in the sum of gradients for worker 1" in capfd.readouterr().err


def test_a_mistake_leaves_no_run_directory(launches: Launches, capfd: pytest.CaptureFixture[str]) -> None:
    body = "print('output', rank)\nfrom shoal.core.errors import ConfigError\nraise ConfigError('global_batch=0: no')"
    outcome = launches.run(body, workers=3)
    assert (outcome.status, outcome.run_dir) == (2, None)
    assert capfd.readouterr().err == "shoal: error: global_batch=0: no\n"
    assert [path.name for path in launches.directory.iterdir()] == ["script.py"]


def test_output_before_a_run_directory_is_shown_when_it_explains_an_end(
    launches: Launches, capfd: pytest.CaptureFixture[str]
) -> None:
    launches.run("if rank == 1:\n    print('cannot open device'); os._exit(9)\ntime.sleep(60)", workers=2)
    shown = capfd.readouterr().err
    assert "ended with status 9" in shown
    assert "  cannot open device" in shown


def test_a_summary_with_an_end_of_its_own_is_kept(launches: Launches) -> None:
    summary = launches.directory / "run" / "summary.json"
    body = (
        started(launches.directory)
        + f"""
if rank == 0:
    open({str(summary)!r}, "w").write('{{"status": "failed", "steps": 5}}')
    raise ValueError("NaN")
while not control.aborted: time.sleep(0.002)
"""
    )
    launches.run(body, workers=2)
    found = json.loads(summary.read_text())
    assert (found["status"], found["steps"]) == ("failed", 5)
    assert [fault["cause"] for fault in found["faults"]] == ["ValueError: NaN"]


def test_the_summary_of_an_earlier_run_is_neither_taken_for_that_of_this_one_nor_lost(
    launches: Launches, capfd: pytest.CaptureFixture[str]
) -> None:
    summary = launches.directory / "run" / "summary.json"
    summary.parent.mkdir()
    summary.write_text('{"status": "completed", "steps": 5}')
    outcome = launches.run(started(launches.directory) + "raise ValueError('bad')")
    assert outcome.summary is not None
    assert outcome.summary["status"] == "failed"
    assert "steps" not in outcome.summary
    assert json.loads(summary.read_text()) == {"status": "completed", "steps": 5}
    assert "summary.json is still that of the run before (completed)" in capfd.readouterr().err


def test_a_directory_that_cannot_be_written_does_not_hide_the_failure(
    launches: Launches, capfd: pytest.CaptureFixture[str]
) -> None:
    body = (
        started(launches.directory)
        + """
os.mkdir("run/events.jsonl")  # a directory where a file should be: writing fails, even for root
raise ValueError("bad")
"""
    )
    assert launches.run(body).status == 1
    shown = capfd.readouterr().err
    assert "ValueError: bad" in shown
    assert "could not be noted" in shown
