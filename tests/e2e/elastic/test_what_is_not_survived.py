"""What a run does not survive is said before it starts, or when it ends."""

from __future__ import annotations

import pytest
from self_hurt import Trials, script

pytestmark = pytest.mark.ranks

FRAGILE = """
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.base import Needs

class Fragile(AllReduce):
    name = "fragile"
    needs = Needs()

class Net"""


def fragile(**hurts: str) -> str:
    return script(settings="strategy=Fragile(),", **hurts).replace("class Net", FRAGILE, 1)


def test_a_strategy_that_cannot_survive_says_so_first(trials: Trials) -> None:
    done, run = trials.train(fragile(), "--workers", "2")
    assert done.status == 0, done.err
    (warning,) = run.events("warning")
    assert warning["message"] == "strategy fragile does not survive the loss of a worker: one that is lost ends the run"
    kinds = [event["kind"] for event in run.events()]
    assert kinds.index("warning") < kinds.index("step")
    assert "does not survive the loss of a worker" in done.out


def test_and_ends_with_the_worker_that_is_lost(trials: Trials) -> None:
    done, run = trials.train(fragile(forward="rank() == 1 and step() == 14 and die()"), "--workers", "2")
    assert done.status == 1
    assert "killed by signal 9" in done.err
    assert run.summary()["status"] == "failed"


def test_asking_it_to_grow_is_refused(trials: Trials) -> None:
    done, _ = trials.train(fragile(), "--workers", "2", "--max-workers", "4")
    assert "elastic.max_workers=4, but a run with strategy=fragile does not survive a change" in done.message()
