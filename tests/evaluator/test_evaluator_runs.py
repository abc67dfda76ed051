"""A run with an evaluator: what it measures and exports, who hears of it, and that its troubles are not the run's."""

from __future__ import annotations

import functools

import pytest
import torch
from evaluator_runs import IN_STEP, KeptNursery, Runs, program
from safetensors.torch import load_file
from torch import nn

from shoal.checkpoint.catalog import Catalog
from shoal.launch.evaluating import EvaluatorChild
from shoal.launch.job import Job
from shoal.launch.launcher import Launcher

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_measures_what_the_workers_would_have_measured(runs: Runs, workers: str) -> None:
    assert runs.train("--workers", workers, run_dir="reference").status == 0
    expected = runs.evaluations("workers", "reference")
    done = runs.train("--evaluator", "--workers", workers, before=IN_STEP)
    assert done.status == 0, done.err
    measured = runs.evaluations("evaluator")
    assert {4, 8} <= set(measured)
    assert set(expected) == {4, 8, 12}
    for step, values in measured.items():
        assert values == pytest.approx(expected[step], rel=1e-6)
    assert set(runs.evaluations("workers")) == {12}  # they do so only at the end, for the summary
    assert runs.summary()["final"] == pytest.approx(runs.summary("reference")["final"], rel=1e-6)
    assert runs.summary()["params_sha256"] == runs.summary("reference")["params_sha256"]
    assert runs.summary()["workers"] == int(workers)
    assert (runs.run / "logs" / "evaluator.log").read_text().startswith("step 4: ")
    assert runs.warnings() == []


def test_the_best_is_exported_though_its_checkpoint_is_not_kept(runs: Runs) -> None:
    words = ["--set", "checkpoint.keep_last=1", "--set", "checkpoint.mode=max"]  # by the loss: the first is the best
    done = runs.train("--evaluator", *words, before=IN_STEP)
    assert done.status == 0, done.err
    best = runs.best()
    assert best["step"] == 4
    assert best["values"] == runs.evaluations("evaluator")[4]
    assert best["monitor"] == "test_loss"
    assert [entry.step for entry in Catalog(runs.run / "checkpoints").entries()] == [12]
    assert runs.train("--steps", "4", "--set", "checkpoint.mode=max", run_dir="short").status == 0
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
    model.load_state_dict(load_file(runs.run / "best" / "model.safetensors"))
    there = load_file(runs.directory / "short" / "checkpoints" / "step-00000004" / "state-00000.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, there[f"model.{name}"])


def test_callbacks_of_the_first_worker_hear_of_it(runs: Runs) -> None:
    fit = """
stopping = shoal.callbacks.EarlyStopping(mode="max", patience=2)  # by the loss: the first is the best
trainer(steps=4000, callbacks=[AtStep(), stopping]).fit()
"""
    done = runs.train("--evaluator", before=IN_STEP, fit=fit)
    assert done.status == 0, done.err
    assert runs.summary()["status"] == "stopped"
    assert runs.summary()["steps"] < 40
    assert "did not improve" in runs.events("run_ended")[-1]["reason"]
    history = (runs.run / "history.csv").read_text().splitlines()
    assert sum(line.startswith("eval,") for line in history) >= 3


def test_it_outlives_the_first_worker_and_is_heard_by_the_next(runs: Runs) -> None:
    before = """
def at_step(step):
    if step == 5:
        until(lambda: evaluated(4))
        if not Path("dead").exists():
            Path("dead").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if step == 9:
        until(lambda: evaluated(8))
"""
    done = runs.train("--evaluator", "--workers", "2", before=before)
    assert done.status == 0, done.err
    assert len(runs.summary()["faults"]) == 1  # the worker's
    assert len(runs.evaluators()) == 1
    rows = [line.split(",") for line in (runs.run / "history.csv").read_text().splitlines()]
    assert "8" in [row[3] for row in rows if row[0] == "eval"]


def test_killed_it_is_started_again_and_goes_on(runs: Runs) -> None:
    before = """
def at_step(step):
    if step == 5:
        until(lambda: evaluated(4))
        mine, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, evaluators()[0]))
        assert its == min(19, mine + 10), "training goes first"
        os.kill(evaluators()[0], signal.SIGKILL)
    if step == 9:
        until(lambda: len(evaluators()) == 2 and evaluated(8))
"""
    done = runs.train("--evaluator", "--workers", "2", before=before)
    assert done.status == 0, done.err
    assert len(runs.evaluators()) == 2
    [warning] = runs.warnings()
    assert "killed by signal 9 (SIGKILL) and is started again (1 of 10)" in warning
    summary = runs.summary()
    assert summary["status"] == "completed"
    assert summary["faults"] == []
    assert runs.events("member_lost") == []
    measured = [e["cursor"]["step"] for e in runs.events("eval") if e["by"] == "evaluator"]
    assert measured.count(4) == 1  # the second one knows what the first has done
    values = {**runs.evaluations("evaluator"), **runs.evaluations("workers")}
    assert runs.best()["step"] == min(values, key=lambda step: values[step]["test_loss"])


def test_killed_again_and_again_it_is_given_up(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvaluatorChild, "limit", 2)
    before = """
def at_step(step):
    if step in (1, 2):
        os.kill(until(lambda: len(evaluators()) == step and evaluators()[-1]), signal.SIGKILL)
    if step == 3:
        until(lambda: any("not started again" in event["message"] for event in events("warning")))
"""
    done = runs.train("--evaluator", before=before)
    assert done.status == 0, done.err
    assert len(runs.evaluators()) == 2
    assert runs.summary()["status"] == "completed"
    assert set(runs.evaluations("workers")) == {12}
    assert "(1 of 1)" in runs.warnings()[0]
    assert "and is not started again: it has been 1 times" in runs.warnings()[1]


def test_frozen_it_does_not_hold_up_the_end_of_the_run(runs: Runs) -> None:
    before = """
def at_step(step):
    if step == 1:
        os.kill(until(evaluators)[0], signal.SIGSTOP)
"""
    done = runs.train("--evaluator", "--set", "evaluator.patience_s=0.5", before=before)
    assert done.status == 0, done.err
    assert runs.summary()["status"] == "completed"
    [warning] = runs.warnings()
    assert "no sign of life for evaluator.patience_s=0.5" in warning
    assert warning in done.err


def test_an_interrupted_run_does_not_wait_for_it(runs: Runs) -> None:
    before = """
def at_step(step):
    if step == 5:
        os.kill(until(evaluators)[0], signal.SIGSTOP)
        zygote = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()
        os.kill(int(zygote[1]), signal.SIGINT)
        until(lambda: current().control.stop_requested)
"""
    done = runs.train("--evaluator", before=before)  # it would be waited for long
    assert done.status == 130, done
    assert runs.warnings() == []
    assert runs.summary()["status"] == "interrupted"
    assert "--evaluator" in done.out + done.err  # in the command to go on
    assert runs.train("--evaluator", before=IN_STEP).status == 0
    assert 8 in runs.evaluations("evaluator")
    assert runs.best()["step"] > 0


def test_what_fails_in_it_fails_there_alone(runs: Runs) -> None:
    before = """
def at_step(step):
    if step == 5:
        until(lambda: events("warning"))

def picky(output, target):
    if current().role == "evaluator":
        raise ValueError("only here")
    return (output.argmax(1) == target).float()
"""
    done = runs.train("--evaluator", before=before, fit='trainer(metrics={"picky": picky}).fit()')
    assert done.status == 0, done.err
    assert len(runs.evaluators()) == 1
    [warning] = runs.warnings()
    assert "ValueError: only here" in warning
    assert "in picky" in (runs.run / "logs" / "evaluator.log").read_text()
    assert runs.summary()["final"]["test_picky"] > 0


def test_every_fit_of_a_script_has_one_of_its_own(runs: Runs) -> None:
    fit = """
first = trainer()
result = first.fit()
second = trainer(model=first.model, steps=8)
second.fit()
with open("after", "a") as file:
    print(current().role, file=file)
"""
    done = runs.train("--evaluator", fit=fit)
    assert done.status == 0, done.err
    for run_dir in ("run", "run/fit-2"):
        assert len(runs.evaluators(run_dir)) == 1
        assert runs.best(run_dir)["step"] > 0
        assert runs.warnings(run_dir) == []
    assert (runs.directory / "after").read_text() == "worker\n"  # no evaluator goes that far


def test_a_run_that_goes_on_goes_on_with_it(runs: Runs) -> None:
    assert runs.train(before=IN_STEP.replace("evaluated(step - 1)", "True")).status == 0
    done = runs.train("--evaluator", "--steps", "20", before=IN_STEP)
    assert done.status == 0, done.err
    assert {12, 16} <= set(runs.evaluations("evaluator"))
    assert set(runs.evaluations("workers")) == {4, 8, 12, 20}


def test_from_a_notebook_it_runs_what_the_workers_run(runs: Runs, evaluator_nursery: KeptNursery) -> None:
    """Stated by the program itself, which is not in a file."""
    text = program(IN_STEP, 'trainer(evaluator={"every_s": 0, "patience_s": 120, "enabled": True}).fit(run_dir="run")')
    job = Job(1, payload=functools.partial(exec, text, {"__name__": "notebook"}), threads=1, relay=True)
    outcome = Launcher(job, evaluator_nursery).run()
    assert outcome.status == 0, outcome.error
    assert {4, 8} <= set(runs.evaluations("evaluator"))
