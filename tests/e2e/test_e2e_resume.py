"""Running the same command with the same run directory goes on where it was, and nobody can tell afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from e2e import Run, Shoal
from e2e_script import SCRIPT, STEPS_PER_EPOCH, program
from safetensors.torch import load_file

pytestmark = pytest.mark.ranks


def parameters(run: Run) -> torch.Tensor:
    """All parameters of the newest checkpoint, as one vector."""
    pieces = load_file(run.checkpoints / run.names()[-1] / "state-00000.safetensors")
    return torch.cat([pieces[name].double().flatten() for name in sorted(pieces) if name.startswith("model.")])


def whole(shoal_here: Shoal, model: str, workers: int) -> Run:
    """The run that is never interrupted."""
    directory = f"whole-{model}-{workers}"
    done = shoal_here.train("--workers", str(workers), "--run-dir", directory, "--", "--model", model)
    assert done.status == 0, done
    return Run(shoal_here.directory / directory)


@pytest.mark.parametrize("model", ["mlp", "norm", "dropout"])
def test_ctrl_c_twice_in_a_run_leaves_no_trace_in_the_result(shoal_here: Shoal, model: str) -> None:
    shoal_here.write(SCRIPT)
    reference = whole(shoal_here, model, 2)
    for step in (7, STEPS_PER_EPOCH + 5):  # in the middle of epochs
        done = shoal_here.train("--workers", "2", "--run-dir", "run", "--", "--model", model, "--signal", str(step))
        assert done.status == 130
        assert "to go on" in done.out
        assert f"shoal train script.py --workers 2 --run-dir {shoal_here.run.path}" in done.out
        assert shoal_here.run.summary()["status"] == "interrupted"
        stopped_at = shoal_here.run.summary()["steps"]
        assert stopped_at == step + 1
        assert shoal_here.run.names()[-1] == f"step-{stopped_at:08d}"
        coverage = shoal_here.run.summary()["coverage"]
        assert coverage["once"] == coverage["expected"] == shoal_here.run.summary()["samples"]
    done = shoal_here.train("--workers", "2", "--run-dir", "run", "--", "--model", model)
    assert done.status == 0
    assert f"going on from step {stopped_at}" in done.out
    assert shoal_here.run.outcome() == reference.outcome()
    assert shoal_here.run.summary()["final"] == reference.summary()["final"]
    steps = [event["cursor"]["step"] for event in shoal_here.run.events("step")]
    assert steps == list(range(1, 3 * STEPS_PER_EPOCH + 1))
    losses = [event["loss"] for event in shoal_here.run.events("step")]
    assert losses == [event["loss"] for event in reference.events("step")]


@pytest.mark.parametrize("model", ["mlp", "norm", "dropout"])
def test_going_on_with_another_number_of_workers(shoal_here: Shoal, model: str) -> None:
    shoal_here.write(SCRIPT)
    reference = whole(shoal_here, model, 1)
    for workers, step in ((1, 5), (3, 17), (2, 30)):
        interrupted = shoal_here.train(
            "--workers", str(workers), "--run-dir", "run", "--", "--model", model, "--signal", str(step)
        )
        assert interrupted.status == 130
    assert shoal_here.train("--workers", "4", "--run-dir", "run", "--", "--model", model).status == 0
    if model != "norm":  # grains share a pass, so sums are rounded differently
        torch.testing.assert_close(parameters(shoal_here.run), parameters(reference), rtol=1e-5, atol=1e-6)
        assert shoal_here.run.outcome()[1] == reference.outcome()[1]
    else:  # grains run one by one: the same bits for any number of workers
        assert shoal_here.run.outcome() == reference.outcome()


def test_a_completed_run_stays_as_it_is(shoal_here: Shoal) -> None:
    shoal_here.write(SCRIPT)
    shoal_here.train("--workers", "2", "--run-dir", "run")
    summary = (shoal_here.run.path / "summary.json").read_bytes()
    checkpoints = {path: path.stat().st_mtime_ns for path in shoal_here.run.checkpoints.rglob("*")}
    done = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert done.status == 0
    assert "it was complete already" in done.out
    assert done.err == ""
    assert (shoal_here.run.path / "summary.json").read_bytes() == summary
    assert {path: path.stat().st_mtime_ns for path in shoal_here.run.checkpoints.rglob("*")} == checkpoints
    told = json.loads(shoal_here.train("--workers", "2", "--run-dir", "run", "--json").out)
    assert told == json.loads(summary)


def test_a_longer_run_goes_on_from_a_completed_one(shoal_here: Shoal) -> None:
    shoal_here.write(SCRIPT)
    reference = whole(shoal_here, "mlp", 2)
    assert shoal_here.train("--workers", "2", "--run-dir", "run", "--epochs", "1").status == 0
    assert shoal_here.run.summary()["epochs"] == 1
    assert shoal_here.train("--workers", "2", "--run-dir", "run", "--steps", "20").status == 0
    assert shoal_here.run.summary()["steps"] == 20
    assert shoal_here.train("--workers", "2", "--run-dir", "run", "--epochs", "3").status == 0
    assert shoal_here.run.outcome() == reference.outcome()


def test_a_run_killed_between_its_last_checkpoint_and_its_summary(shoal_here: Shoal) -> None:
    """Nothing is left to train, but the summary must be that of the run."""
    shoal_here.write(SCRIPT)
    reference = whole(shoal_here, "mlp", 2)
    shoal_here.train("--workers", "2", "--run-dir", "run")
    (shoal_here.run.path / "summary.json").unlink()
    assert shoal_here.train("--workers", "2", "--run-dir", "run").status == 0
    assert shoal_here.run.outcome() == reference.outcome()
    assert shoal_here.run.summary()["final"] == reference.summary()["final"]


FAILING = """
class Failing(shoal.callbacks.Callback):
    def on_step(self, event, run):
        if event.cursor.step == options.fail:
            raise ZeroDivisionError("on purpose")
"""


@pytest.mark.parametrize("when", ["loading", "a step"])
def test_a_resume_that_fails_leaves_the_result_of_the_completed_run(shoal_here: Shoal, when: str) -> None:
    script = SCRIPT.replace("class CtrlC", FAILING + "\nclass CtrlC").replace("[CtrlC()]", "[CtrlC(), Failing()]")
    shoal_here.write(script.replace("options = ", 'parser.add_argument("--fail", type=int)\noptions = '))
    reference = whole(shoal_here, "mlp", 2)
    words = ("--workers", "2", "--run-dir", "run")
    assert shoal_here.train(*words, "--epochs", "1").status == 0
    files = [shoal_here.run.path / name for name in ("summary.json", "config.yaml", "history.csv", "events.jsonl")]
    before = [file.read_bytes() for file in files]
    wrong = {"loading": ("--optimizer", "adam"), "a step": ("--fail", "20")}[when]
    done = shoal_here.train(*words, "--epochs", "3", "--", *wrong)
    assert done.status != 0
    after = [file.read_bytes() for file in files]
    assert after[0] == before[0]
    if when == "loading":
        assert after[1:3] == before[1:3]
    assert after[3].startswith(before[3]), "events are only added"
    told = "summary.json is still that of the run before (completed)" in done.err
    assert told == (when != "loading"), "what was refused at once has touched nothing, and need not say so"
    assert shoal_here.train(*words, "--epochs", "3").status == 0
    assert shoal_here.run.outcome() == reference.outcome()
    assert shoal_here.run.summary()["faults"], "the failure is not forgotten"
    assert not (shoal_here.run.path / "failure.json").exists()


def test_the_summary_of_a_shorter_run_is_not_that_of_a_longer_one(shoal_here: Shoal) -> None:
    """Killed between its last checkpoint and its summary, it finds that of the run that it went on from."""
    shoal_here.write(SCRIPT)
    reference = whole(shoal_here, "mlp", 2)
    words = ("--workers", "2", "--run-dir", "run")
    assert shoal_here.train(*words, "--epochs", "1").status == 0
    summary = shoal_here.run.path / "summary.json"
    short = summary.read_bytes()
    assert shoal_here.train(*words, "--epochs", "3").status == 0
    summary.write_bytes(short)
    assert shoal_here.train(*words, "--epochs", "3").status == 0
    assert shoal_here.run.outcome() == reference.outcome()


def test_a_late_evaluation_is_not_that_of_an_early_one(shoal_here: Shoal) -> None:
    """The last evaluation is made after the last checkpoint: a run that was killed between them makes it again."""
    shoal_here.write(SCRIPT)
    words = ("--workers", "2", "--run-dir", "run", "--set", "eval_every=2 epochs")
    assert shoal_here.train(*words).status == 0
    final = shoal_here.run.summary()["final"]
    (shoal_here.run.path / "summary.json").unlink()
    assert shoal_here.train(*words).status == 0
    assert shoal_here.run.summary()["final"] == final


def test_the_best_checkpoint_is_one_that_was_evaluated(shoal_here: Shoal) -> None:
    """A checkpoint between two evaluations has no test loss of its own."""
    shoal_here.write(SCRIPT)
    words = ("--run-dir", "run", "--set", "checkpoint.every=1 step", "--set", "checkpoint.keep_last=1")
    assert shoal_here.train("--workers", "2", *words, "--set", "eval_every=10 steps").status == 0
    kept = {int(name.removeprefix("step-")) for name in shoal_here.run.names()}
    losses = {event["cursor"]["step"]: event["values"]["test_loss"] for event in shoal_here.run.events("eval")}
    assert kept == {min(losses, key=lambda step: losses[step]), 3 * STEPS_PER_EPOCH}


def test_a_script_that_trains_twice(shoal_here: Shoal) -> None:
    text = program(
        fit="""
first = trainer.fit()
again = shoal.Trainer(
    model=nn.Linear(10, 4), loss=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.SGD(p, lr=0.05),
    train=data(101, 3), global_batch=10, epochs=2, callbacks=[Stop()],
)
second = again.fit()
print("BOTH", first.summary["steps"], second.summary["steps"])
""",
        before="""
class Stop(shoal.callbacks.Callback):
    def on_step(self, event, run):
        if event.cursor.step == 13 and len(sys.argv) > 1:
            interrupt()
""",
    )
    shoal_here.write(text)
    whole_run = shoal_here.train("--workers", "2", "--run-dir", "whole")
    assert whole_run.status == 0
    assert "BOTH 24 22" in whole_run.out
    interrupted = shoal_here.train("--workers", "2", "--run-dir", "run", "--", "stop")
    assert interrupted.status == 130
    assert "BOTH" not in interrupted.out
    assert shoal_here.run.summary()["status"] == "completed"
    assert Run(shoal_here.run.path / "fit-2").summary()["status"] == "interrupted"
    # the command that is shown resumes the script, not its second half
    assert f"--run-dir {shoal_here.run.path} -- stop\n" in interrupted.out
    resumed = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert resumed.status == 0
    assert "BOTH 24 22" in resumed.out
    for part in ("", "fit-2"):
        there, here = Run(shoal_here.directory / "whole" / part), Run(shoal_here.run.path / part)
        assert here.outcome() == there.outcome()


def test_a_loop_of_ones_own_goes_on(shoal_here: Shoal) -> None:
    text = (
        program(fit="").replace("trainer = ", "unused = ")
        + """
run = shoal.prepare(
    nn.Sequential(nn.Linear(10, 4)), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), nn.CrossEntropyLoss(),
    global_batch=20, seed=3,
)
train, steps = data(237, 1), 0
for epoch in range(2):
    for batch in run.batches(train):
        run.step(batch)
        steps += 1
        if "stop" in sys.argv and steps == 15:
            if rank() == 0:
                interrupt()
print("STEPS", steps)
"""
    )
    shoal_here.write(text)
    assert "STEPS 24" in shoal_here.train("--workers", "2", "--run-dir", "whole").out
    assert shoal_here.train("--workers", "2", "--run-dir", "run", "--", "stop").status == 130
    assert shoal_here.run.summary()["steps"] == 16
    resumed = shoal_here.train("--workers", "2", "--run-dir", "run")
    assert "STEPS 8" in resumed.out
    assert shoal_here.run.outcome() == Run(shoal_here.directory / "whole").outcome()


def test_two_runs_do_not_share_a_directory(shoal_here: Shoal, tmp_path: Path) -> None:
    """A run in a run's own directory, started while that holds it."""
    shoal_here.write(SCRIPT)
    from shoal.launch.rundir import RunDir

    with RunDir(tmp_path / "run").locked():
        message = shoal_here.train("--run-dir", "run").message()
    assert "is in use by another run: wait for it, or choose another --run-dir" in message
