"""Workers that give no sign of life, or do but do not get on: put out, named, replaced."""

from __future__ import annotations

import pytest
from self_hurt import Trials, assert_same, script

pytestmark = pytest.mark.ranks
NORM = "nn.BatchNorm1d(16),"


def fault_of(trials: Trials, hurt: str, *words: str) -> dict[str, object]:
    """The one fault of a run on three workers that `hurt` hurts, once it is sure that nothing else has come of it."""
    calm = trials.calm(script(norm=NORM), "--workers", "3")
    done, run = trials.train(script(norm=NORM, forward=hurt), "--workers", "3", *words)
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    (fault,) = run.summary()["faults"]
    assert fault["at_step"] == 14, fault
    assert str(fault["cause"]) in done.err
    return dict(fault)


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_frozen_worker_is_put_out(trials: Trials, victim: int, backend: str) -> None:
    hurt = f"rank() == {victim} and step() == 14 and die(number=signal.SIGSTOP)"
    fault = fault_of(trials, hurt, "--set", f"comm.backend={backend}")
    assert str(fault["member"]).startswith(f"worker {victim} on "), fault
    assert "stop" in str(fault["cause"]).lower(), fault
    assert "script.py" in str(fault["stack"]), "the stack of the frozen worker names the line it was at"


def test_a_frozen_worker_is_put_out_with_the_shortest_lease(trials: Trials) -> None:
    """On a busy machine healthy workers may be silent for so long, too. They are replaced, and nothing is lost."""
    calm = trials.calm(script(norm=NORM), "--workers", "3")
    hurt = script(norm=NORM, forward="rank() == 1 and step() == 14 and die(number=signal.SIGSTOP)")
    done, run = trials.train(hurt, "--workers", "3", "--set", "elastic.lease_s=0.5", "--max-restarts", "1000")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    (fault,) = (fault for fault in run.summary()["faults"] if "SIGSTOP" in fault["cause"])
    assert fault["at_step"] == 14, fault
    assert str(fault["member"]).startswith("worker 1 on "), fault


def test_a_hanging_worker_is_put_out(trials: Trials) -> None:
    hurt = "rank() == 1 and step() == 14 and once('hang') and time.sleep(600)"
    fault = fault_of(trials, hurt, "--set", "elastic.hang_s=2", "--set", "elastic.hang_steps=1")
    assert str(fault["member"]).startswith("worker 1 on "), fault
    assert "no progress" in str(fault["cause"]), fault
    assert fault["phase"] == "forward"
    assert "script.py" in str(fault["stack"]), fault


def test_a_hanging_member_of_a_team_is_put_out_and_nobody_who_waits_for_it(trials: Trials) -> None:
    """Its team waits for it in a sum, the other team at the end of the round."""
    words = ("--strategy", "hybrid", "--workers", "4", "--set", "hybrid.team=2", "--set", "elastic.hang_s=2")
    hurt = script(norm=NORM, forward="rank() == 2 and step() >= 14 and once('hang') and time.sleep(600)")
    done, run = trials.train(hurt, *words, "--set", "elastic.hang_steps=1")
    assert done.status == 0, done.err
    summary = run.summary()
    assert summary["coverage"] == {"expected": 711, "once": 711, "missed": 0, "repeated": 0}
    (fault,) = summary["faults"]
    assert str(fault["member"]).startswith("worker 2 on "), fault
    assert "no progress" in str(fault["cause"]), fault
    assert "script.py" in str(fault["stack"]), fault


@pytest.mark.parametrize("processes", [0, 1])
def test_a_worker_whose_data_hang_is_put_out(trials: Trials, processes: int) -> None:
    """In the worker itself or in a process that reads for it, ahead of the step."""
    calm = trials.calm(script(norm=NORM), "--workers", "3")
    hang = "rank() == 1 and step() >= 14 and once('hang') and time.sleep(600)"
    hurt = script(norm=NORM, sample=hang, settings=f"loader={{'processes': {processes}}},")
    done, run = trials.train(hurt, "--workers", "3", "--set", "elastic.hang_s=2", "--set", "elastic.hang_steps=1")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    (fault,) = run.summary()["faults"]
    assert str(fault["member"]).startswith("worker 1 on "), fault
    assert fault["phase"] == "data", fault
    assert "no progress" in fault["cause"], fault
    assert fault["at_step"] >= 14 if processes else fault["at_step"] == 14, fault
    assert ("in __getitem__" in fault["stack"]) == (processes == 0), "else it waits for its reader"


def test_a_slow_first_step_is_no_hang(trials: Trials) -> None:
    calm = trials.calm(script(), "--workers", "2")
    slow = script(forward="step() == 0 and once(f'slow {rank()}') and time.sleep(6)")
    done, run = trials.train(slow, "--workers", "2", "--set", "elastic.hang_s=3", "--set", "elastic.hang_steps=1")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert run.summary()["faults"] == []


def test_a_worker_that_keeps_the_interpreter_to_itself_is_not_frozen(trials: Trials) -> None:
    """A compiled function that holds the lock of the interpreter silences the beats; it computes all the same."""
    busy = "rank() == 1 and step() == 14 and once('busy') and sum(range(300_000_000))"
    calm = trials.calm(script(norm=NORM), "--workers", "2")
    done, run = trials.train(script(norm=NORM, forward=busy), "--workers", "2", "--set", "elastic.hang_s=600")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert run.summary()["faults"] == []
