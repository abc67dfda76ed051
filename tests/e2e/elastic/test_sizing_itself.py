"""A run that asks for fewer workers because sending costs too much, and one that asks for more because it does not."""

from __future__ import annotations

import pytest
from e2e import Run
from self_hurt import Trials, script

pytestmark = pytest.mark.ranks

SIZED = ("--strategy", "incremental", "--set", "incremental.h=2", "--set", "elastic.size=auto")
MADE_LINK = """
from shoal.strategies.incremental_replica import IncrementalReplica
from shoal.strategies.sizing import Measured

def made(self, trainers, steps, computing_s, sending_s):
    "As if a step took a second's work, and an average so long."
    sending_s = {sending_s} if trainers > 1 else 0.0
    return Measured(trainers, 1.0 / trainers, sending_s, sending_s / (sending_s + steps / trainers), steps)

IncrementalReplica._measured = made
"""


def sized(trials: Trials, sending_s: float, size: int, *words: str) -> tuple[Run, str]:
    """A run on a made link that ends as soon as it has `size` workers; and what the user was shown."""
    text = script(epochs="100_000", on_step=f"return shoal.callbacks.Stop('sized') if size() == {size} else None")
    text = text.replace("class Net", f"{MADE_LINK.format(sending_s=sending_s)}\n\nclass Net")
    done, run = trials.train(text, *SIZED, "--set", "eval_every=never", *words)
    assert done.status == 0, done.err
    summary = run.summary()
    assert summary["status"] == "stopped", summary
    assert summary["coverage"]["missed"] == summary["coverage"]["repeated"] == 0
    assert summary["coverage"]["once"] == summary["coverage"]["expected"] > 0
    assert summary["faults"] == []
    return run, done.err


def test_on_a_slow_link_a_run_goes_on_with_fewer(trials: Trials) -> None:
    run, shown = sized(trials, 90.0, 1, "--workers", "3", "--max-workers", "3")
    (wish,) = run.events("size")
    assert (wish["before"], wish["workers"]) == (3, 1)
    assert wish["reason"] == "sending takes 99 % of the time: 3 workers -> 1"
    assert shown.count(f"shoal: {wish['reason']}\n") == 1
    assert "as fewer workers are wanted" in shown
    assert len(run.events("view")[-1]["pids"]) == 1


def test_on_a_fast_link_a_run_grows_to_what_it_may_have(trials: Trials) -> None:
    run, shown = sized(trials, 0.001, 3, "--workers", "1", "--max-workers", "3")
    wishes = [(wish["before"], wish["workers"]) for wish in run.events("size")]
    assert wishes[0] == (1, 2)
    assert wishes[-1] == (2, 3)
    assert "shoal: sending takes 0 % of the time: 2 workers -> 3\n" in shown
    assert [len(view["pids"]) for view in run.events("view")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--workers", "2"), "give --max-workers"),
        (("--workers", "2", "--max-workers", "3", "--strategy", "allreduce"), "strategy allreduce does not measure"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(trials: Trials, words: tuple[str, ...], told: str) -> None:
    done, _ = trials.train(script(), "--set", "elastic.size=auto", *words)
    assert told in done.message()
