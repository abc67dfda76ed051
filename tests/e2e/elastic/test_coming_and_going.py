"""Workers that leave in good order, that come while training goes on, and a coordinator that is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest
from e2e import Process, Run, eventually
from self_hurt import Trials, assert_same, script

pytestmark = pytest.mark.ranks
NORM = "nn.BatchNorm1d(16),"
SLOWLY = "time.sleep(0.01)"  # a step takes its time, so that something can happen in a run


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_told_to_go_finishes_its_step(trials: Trials, victim: int) -> None:
    calm = trials.calm(script(norm=NORM), "--workers", "3")
    told = f"rank() == {victim} and step() == 14 and once('told') and os.kill(os.getpid(), signal.SIGTERM)"
    done, run = trials.train(script(norm=NORM, forward=told), "--workers", "3")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    steps = [event["cursor"]["step"] for event in run.events("step")]
    assert steps == sorted(set(steps)), "a step was done twice, though nobody was lost in it"


def test_a_lone_worker_that_is_told_to_go_leaves_a_checkpoint(trials: Trials) -> None:
    calm = trials.calm(script(norm=NORM), "--workers", "1")
    told = "step() == 14 and once('told') and os.kill(os.getpid(), signal.SIGTERM)"
    done, run = trials.train(script(norm=NORM, forward=told), "--workers", "1")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    steps = [event["cursor"]["step"] for event in run.events("step")]
    assert steps == sorted(set(steps)), "a step was done twice"


def test_a_lone_worker_that_goes_when_an_evaluation_is_due_leaves_that_to_the_next(trials: Trials) -> None:
    told = "step() == 10 and once('told') and os.kill(os.getpid(), signal.SIGTERM)"  # it goes after step 12
    done, run = trials.train(script(norm=NORM, forward=told, settings="eval_every='12 steps',"), "--workers", "1")
    assert done.status == 0, done.err
    assert [view["number"] for view in run.events("view")] == [1, 2]
    (moment,) = [at for at, event in enumerate(run.events()) if event["kind"] == "member_lost"]
    before = [event["cursor"]["step"] for event in run.events()[:moment] if event["kind"] == "step"]
    assert before[-1] == 12, "it did not go when an evaluation was due"
    assert [event["cursor"]["step"] for event in run.events("eval")] == [12, 24, 36]


def test_an_exception_ends_the_run_unless_it_may_go_on(trials: Trials) -> None:
    bad = "if rank() == 1 and step() == 14 and once('raise'): raise ValueError('bad sample')"
    hurt = script(norm=NORM, forward=bad)
    done, run = trials.train(hurt, "--workers", "3", run="stops")
    assert done.status == 1
    assert "bad sample" in done.err
    calm = trials.calm(script(norm=NORM), "--workers", "3")
    done, run = trials.train(hurt, "--workers", "3", "--on-error", "continue")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    (fault,) = run.summary()["faults"]
    assert "ValueError: bad sample" in fault["cause"]


def test_without_a_replacement_the_run_goes_on_with_fewer(trials: Trials) -> None:
    calm = trials.calm(script(norm=NORM), "--workers", "3")
    hurt = script(norm=NORM, forward="rank() == 1 and step() == 14 and die()")
    done, run = trials.train(hurt, "--workers", "3", "--max-restarts", "0")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert run.summary()["workers"] == 2


def test_too_few_workers_end_the_run(trials: Trials) -> None:
    hurt = script(forward="rank() == 1 and step() == 14 and die()")
    done, run = trials.train(hurt, "--workers", "2", "--max-restarts", "0", "--min-workers", "2")
    assert done.status == 1
    assert "killed by signal 9" in done.err
    assert run.summary()["status"] == "failed"


@pytest.mark.parametrize("times", [1, 3])
def test_the_coordinator_is_killed(trials: Trials, shoal_process: Callable[..., Process], times: int) -> None:
    calm = trials.calm(script(norm=NORM), "--workers", "2")
    trials.shoal.write(script(norm=NORM, epochs="40", forward=SLOWLY), "long.py")
    run = Run(trials.shoal.directory / "long")
    training = shoal_process("long.py", "--workers", "2", "--run-dir", "long")
    known: set[int] = set()
    for number in range(times):
        eventually(lambda number=number: len(run.events("step")) > 10 * (number + 1))
        pid = eventually(lambda: coordinator(run) if coordinator(run) not in known else 0)
        known.add(pid)
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: coordinator(run) not in known)
    victim = run.events("view")[-1]["pids"][1]  # and the new one does its work
    os.kill(victim, signal.SIGKILL)
    done = training.end()
    assert done.status == 0, done.err
    summary = run.summary()
    assert summary["coverage"]["once"] == summary["samples"] == 237 * 40
    assert len(summary["faults"]) == 1
    assert calm.summary()["status"] == "completed"


def test_the_zygote_is_killed_and_the_workers_go_on(trials: Trials) -> None:
    """Then a worker is killed: who takes its place comes from the next zygote, or was ready before."""
    calm = trials.calm(script(norm=NORM), "--workers", "3")
    leads = "p.name() == 'shoal-zygote' and os.getsid(p.pid) == p.pid"
    found = f"[p.pid for p in psutil.Process(os.getppid()).children() if {leads}]"
    hurt = f"rank() == 0 and step() == 9 and once('zygote') and os.kill({found}[0], signal.SIGKILL)"
    hurt += "; rank() == 1 and step() == 14 and die()"
    done, run = trials.train("import psutil\n" + script(norm=NORM, forward=hurt), "--workers", "3")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert "forked from was killed by signal 9 (SIGKILL) and is started again; the workers go on" in done.err
    assert len(run.summary()["faults"]) == 1, "only the worker's loss is one"
    (warning,) = [event for event in run.events("warning") if "started again" in event["message"]]
    steps = [event["cursor"]["step"] for event in run.events("step")]
    assert steps.count(9) == 1, warning


def coordinator(run: Run) -> int:
    """The process that coordinates the run, once it says so."""
    try:
        return int(json.loads((run.path / "coordinator.json").read_text())["pid"])
    except (OSError, ValueError):
        return 0
