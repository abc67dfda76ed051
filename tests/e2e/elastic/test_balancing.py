"""Shares that follow speed, on real workers: they move to who is quicker, and nobody can tell from the result.

What the workers measured is replaced by figures that the test chooses, so that nothing here depends on how busy the
machine is.
"""

from __future__ import annotations

import pytest
from e2e import Run
from self_hurt import Trials, assert_same, script

pytestmark = pytest.mark.ranks
DROPOUT = "nn.Dropout(0.2),"
AUTO = ("--set", "balance=auto")
FINE = ("--set", "grain=2")  # ten grains to a batch
EXACT = (
    *FINE,
    "--set",
    "passes=grain",
)  # they run one by one, so that who computed them leaves no trace: the same bits

# the seconds of a sample on each worker at a step are what `costs` says
MEASURED = """
import dataclasses
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.parameter_server import ParameterServer

def costs(step, size):
    {costs}

def as_measured(real):
    def step(self, replica, work):
        result = real(self, replica, work)
        each = costs(work.batch.cursor.step, len(result.spans))
        spent = [cost * (span.stop - span.start) for cost, span in zip(each, result.spans)]
        timings = tuple(dict(data=0.0, forward=s / 2, backward=s / 2, reduce=0.0) for s in spent)
        return dataclasses.replace(result, timings=timings)
    return step

for strategy in (AllReduce, ParameterServer):
    strategy.step = as_measured(strategy.step)
{before}
class Net"""
# what a worker finds where it is: two cores of its own, or one of which it gets a quarter
FOUND = """
import shoal.train.balancing
from shoal.elastic.capacity import Capacity
found = [Capacity((0, 1), None, 0.0, 3), {second}][current().world.rank]
shoal.train.balancing.measure = lambda: found
"""
SCARCE = {"few cores": "Capacity((2,), 0.25, 0.0, 3)", "little free CPU": "Capacity((2,), None, 9.0, 3)"}
SLOW_FOR_A_WHILE = "return [1.0, 4.0 if 8 <= step < 30 else 1.0]"


def measured(costs: str, before: str = "", **hurts: str) -> str:
    return script(**hurts).replace("class Net", MEASURED.format(costs=costs, before=before))


def samples(run: Run, costs: list[float], step: int) -> list[int]:
    """What each worker computed in a step, found by the seconds that were made of it."""
    event = next(event for event in run.events("step") if event["cursor"]["step"] == step + 1)
    spent = [times["forward"] + times["backward"] for times in event["timings"]]
    return [round(seconds / cost) for seconds, cost in zip(spent, costs, strict=True)]


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        ("", ()),
        ("", ("--set", "loader.processes=2")),
        (DROPOUT, ()),
        ("", ("--strategy", "parameter-server")),
    ],
    ids=["merged", "read ahead", "grain by grain", "with a server"],
)
def test_shares_move_to_the_quicker_worker_and_back(trials: Trials, norm: str, words: tuple[str, ...]) -> None:
    text = measured(SLOW_FOR_A_WHILE, norm=norm, epochs="5")
    fine = EXACT if norm else FINE
    calm = trials.calm(text, "--workers", "2", *fine)
    done, run = trials.train(text, "--workers", "2", *fine, *AUTO, *words)
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0 if norm else 5e-6)
    assert not calm.events("balance")
    away, back = run.events("balance")
    assert away["weights"] == [8.0, 2.0]
    assert 8 < away["step"] <= 20
    assert back["weights"] == [5.0, 5.0]
    assert 30 < back["step"] <= 50
    assert samples(run, [1.0, 4.0], away["step"] - 1) == [10, 10]
    assert samples(run, [1.0, 4.0], away["step"]) == [16, 4], "it holds from the step that the event names"


@pytest.mark.parametrize("scarce", SCARCE)
def test_before_anything_is_measured_shares_follow_the_guess(trials: Trials, scarce: str) -> None:
    """It was right, and so it stays."""
    costs, before = "return [1.0, 4.0]", FOUND.format(second=SCARCE[scarce])
    calm = trials.calm(measured(costs, norm=DROPOUT, epochs="1"), "--workers", "2", *EXACT)
    done, run = trials.train(measured(costs, before, norm=DROPOUT, epochs="1"), "--workers", "2", *EXACT, *AUTO)
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert {tuple(samples(run, [1.0, 4.0], step)) for step in range(10)} == {(16, 4)}
    (guess,) = run.events("balance")
    assert (guess["step"], guess["weights"]) == (0, [8.0, 2.0])
    assert guess["reason"] == "a guess from cores and free CPU"


def test_a_wrong_guess_holds_until_it_is_measured(trials: Trials) -> None:
    text = measured("return [1.0, 1.0]", FOUND.format(second=SCARCE["few cores"]))
    done, run = trials.train(text, "--workers", "2", *EXACT, *AUTO)
    assert done.status == 0, done.err
    guess, right = run.events("balance")
    assert (guess["step"], guess["weights"]) == (0, [8.0, 2.0])
    assert right["weights"] == [5.0, 5.0]
    assert "guess" not in right["reason"]
    assert samples(run, [1.0, 1.0], right["step"] - 1) == [16, 4]
    assert samples(run, [1.0, 1.0], right["step"]) == [10, 10]


def test_stated_weights_win(trials: Trials) -> None:
    text = measured(SLOW_FOR_A_WHILE)
    done, run = trials.train(text, "--workers", "2", *EXACT, *AUTO, "--set", "weights=[4,1]")
    assert done.status == 0, done.err
    assert not run.events("balance")
    assert {tuple(samples(run, [1.0, 1.0], step)) for step in range(5)} == {(16, 4)}


def test_survivors_keep_what_was_measured_of_them(trials: Trials) -> None:
    costs, hurt = "return {3: [1.0, 1.0, 4.0], 2: [1.0, 4.0]}[size]", "rank() == 1 and step() == 20 and die()"
    calm = trials.calm(measured(costs, norm=DROPOUT), "--workers", "3", *EXACT)
    text = measured(costs, norm=DROPOUT, forward=hurt)
    done, run = trials.train(text, "--workers", "3", *EXACT, *AUTO, "--max-restarts", "0")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    first, second = run.events("balance")
    assert first["weights"] in ([4.0, 5.0, 1.0], [5.0, 4.0, 1.0])
    assert second["weights"] == [8.0, 2.0]
    assert second["step"] in (20, 21), "it holds from the first step of the new view"
    assert second["reason"] == "as measured before"


def test_a_newcomer_goes_by_the_shares_of_the_others(trials: Trials) -> None:
    costs = "return [1.0, 1.0, 4.0][:size]"
    calm = trials.calm(measured(costs, norm=DROPOUT), "--workers", "3", *EXACT)
    text = measured(costs, norm=DROPOUT, forward="rank() == 1 and step() == 14 and die()")
    done, run = trials.train(text, "--workers", "3", *EXACT, *AUTO)
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert run.events("balance")


def test_a_run_that_goes_on_begins_with_the_guess(trials: Trials) -> None:
    text = measured("return [1.0, 4.0]", epochs="1")
    done, run = trials.train(text, "--workers", "2", *EXACT, *AUTO)
    assert done.status == 0, done.err
    assert run.events("balance")[-1]["weights"] == [8.0, 2.0]
    done, run = trials.train(text, "--workers", "2", *EXACT, *AUTO, "--epochs", "2")
    assert done.status == 0, done.err
    assert samples(run, [1.0, 4.0], 12) == [10, 10]
    assert len(run.events("balance")) == 2


def test_what_was_really_measured(trials: Trials) -> None:
    """Whatever clocks say on a busy machine, and whatever follows from it: the result is the same."""
    calm = trials.calm(script(norm=DROPOUT), "--workers", "2", *EXACT)
    slow = script(norm=DROPOUT, forward="rank() == 1 and time.sleep(0.002 * len(x))")
    done, run = trials.train(slow, "--workers", "2", *EXACT, *AUTO)
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)


def test_a_worker_that_misses_a_change_does_not_go_unnoticed(trials: Trials) -> None:
    """Who computes what is decided by each of them, from the same facts; if one decides otherwise, all stop at once."""
    deaf = """
from shoal.train.feed import Feed
if current().world.rank == 1:
    Feed.reshare = lambda *_: None
"""
    done, run = trials.train(measured(SLOW_FOR_A_WHILE, before=deaf), "--workers", "2", *EXACT, *AUTO)
    assert done.status == 1
    (away,) = run.events("balance")
    assert f"did not divide the batch of step {away['step']} among them" in done.err
