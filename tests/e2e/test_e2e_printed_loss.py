"""The loss that a user is shown is that of the epoch's samples so far, wherever the process began that shows it."""

from __future__ import annotations

import re

import pytest
from e2e import Run, Shoal
from e2e_script import SCRIPT, STEPS_PER_EPOCH, program

pytestmark = pytest.mark.ranks

KILL = """
class Kill(shoal.callbacks.Callback):
    def on_step(self, event, run):
        if event.cursor.step == 17 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def epochs_told(text: str) -> dict[str, str]:
    """What was said at the end of each epoch, by its step."""
    return dict(re.findall(r"^epoch \S+  (step \S+)  (loss \S+  test_loss \S+)", text, re.MULTILINE))


def losses_of_epochs(run: Run) -> None:
    """Holds every `train_loss` of the log against the losses of the steps of its epoch, weighed by samples."""
    latest = {event["cursor"]["step"]: event for event in run.events("step")}  # a step may have been taken again
    total = samples = 0.0
    for _, event in sorted(latest.items()):
        total += event["loss"] * event["samples"]
        samples += event["samples"]
        assert event["train_loss"] == pytest.approx(total / samples, rel=1e-9)
        if event["cursor"]["batch"] == 0:
            total = samples = 0.0
    assert run.summary()["final"]["train_loss"] == event["train_loss"]


@pytest.mark.parametrize("strategy", ["incremental", "parameter-server", "async"])
def test_a_run_that_goes_on_in_the_middle_of_an_epoch(shoal_here: Shoal, strategy: str) -> None:
    shoal_here.write(SCRIPT)
    words = ("--workers", "2", "--strategy", strategy, "--run-dir", "run")
    assert shoal_here.train(*words, "--steps", str(STEPS_PER_EPOCH + 5)).status == 0
    losses_of_epochs(shoal_here.run)
    done = shoal_here.train(*words, "--epochs", "3")
    assert done.status == 0, done
    losses_of_epochs(shoal_here.run)
    last = shoal_here.run.events("step")[-1]["train_loss"]
    assert epochs_told(done.out)["step 36/36"].startswith(f"loss {last:.4g} ")


def test_a_resumed_run_tells_what_an_uninterrupted_one_tells(shoal_here: Shoal) -> None:
    shoal_here.write(SCRIPT)
    whole = epochs_told(shoal_here.train("--workers", "2", "--run-dir", "whole").out)
    assert len(whole) == 3
    told = {}
    for words in (["--signal", "17"], []):
        told |= epochs_told(shoal_here.train("--workers", "2", "--run-dir", "run", "--", *words).out)
    assert told == whole


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_first_worker_leaves_no_trace_in_what_is_told(shoal_here: Shoal, workers: int) -> None:
    shoal_here.write(program(before=KILL, settings="epochs=3, callbacks=[Kill()], checkpoint={'every': '5 steps'},"))
    done = shoal_here.train("--workers", str(workers), "--run-dir", "run", "--set", "passes=grain")
    assert done.status == 0, done
    (shoal_here.directory / "killed").touch()
    whole = shoal_here.train("--workers", str(workers), "--run-dir", "whole", "--set", "passes=grain")
    assert len(epochs_told(whole.out)) == 3
    assert epochs_told(done.out) == epochs_told(whole.out)
    losses_of_epochs(shoal_here.run)
