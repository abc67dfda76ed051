"""A worker dies at an exact moment: the others go on in place, a new one comes, and nobody can tell afterwards."""

from __future__ import annotations

from itertools import pairwise

import pytest
from e2e import Run
from self_hurt import Trials, assert_same, script

pytestmark = pytest.mark.ranks

MOMENTS = {
    "forward": {"forward": "rank() == {victim} and step() == 14 and die()"},
    "first step": {"forward": "rank() == {victim} and step() == 0 and die()"},
    "last step": {"forward": "rank() == {victim} and step() == 35 and die()"},
    "evaluation": {"evaluation": "rank() == {victim} and step() == 24 and die()"},
    "last evaluation": {"evaluation": "rank() == {victim} and step() == 36 and die()"},
    "segmentation fault": {"forward": "rank() == {victim} and step() == 14 and die(number=signal.SIGSEGV)"},
    "own end": {"forward": "rank() == {victim} and step() == 14 and once('x') and os._exit(3)"},
    "two in a row": {"forward": "rank() == min({victim}, size() - 1) and step() in (14, 15) and die(f'at {{step()}}')"},
    "before the run": {"settings": "seed=(rank() == 0 and current().world.rank == {victim} and die()) or 0,"},
}


def assert_in_place(run: Run, deaths: int) -> None:
    """The others went on in the processes that they had, and in their order, and did no committed step again."""
    lost = [event["pid"] for event in run.events("member_lost")]
    assert len(lost) == deaths, lost
    for before, after in pairwise(event["pids"] for event in run.events("view")):
        kept = [pid for pid in before if pid in after or pid not in lost]
        assert after[: len(kept)] == kept, (before, after, lost)
    steps = [event["cursor"]["step"] for event in run.events("step")]
    assert set(steps) == set(range(1, 37)), "a step is missing in the events"
    # a step that the first worker has told of counts for nothing if nobody else had it when it died: it is done again
    assert all(after in (before, before + 1) for before, after in pairwise(steps)), steps
    assert len(steps) - len(set(steps)) <= deaths, steps


@pytest.mark.parametrize("norm", ["", "nn.BatchNorm1d(16),"], ids=["merged", "grains"])
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_dies(trials: Trials, moment: str, victim: int, norm: str) -> None:
    hurts = {name: text.format(victim=victim) for name, text in MOMENTS[moment].items()}
    calm = trials.calm(script(norm=norm), "--workers", "3")
    done, run = trials.train(script(norm=norm, **hurts), "--workers", "3")
    assert done.status == 0, done.err
    # grains that run one by one leave no trace of who computed them: the same bits
    assert_same(run, calm, 0.0 if norm else 5e-6)
    faults = run.summary()["faults"]
    deaths = 2 if moment == "two in a row" else 1
    assert len(faults) == deaths, faults
    assert_in_place(run, deaths)


@pytest.mark.parametrize("place", ["on_step", "on_eval", "on_checkpoint"])
def test_the_first_worker_dies_while_it_tells(trials: Trials, place: str) -> None:
    calm = trials.calm(script(norm="nn.BatchNorm1d(16),"), "--workers", "3")
    done, run = trials.train(
        script(norm="nn.BatchNorm1d(16),", **{place: "event.cursor.step >= 12 and die()"}), "--workers", "3"
    )
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert_in_place(run, 1)


def test_all_die_at_once_and_new_ones_go_on_from_the_checkpoint(trials: Trials) -> None:
    calm = trials.calm(script(), "--workers", "2")
    hurt = script(forward="step() == 17 and die(f'{rank()}')", settings="checkpoint={'every': '5 steps'},")
    done, run = trials.train(hurt, "--workers", "2")
    assert done.status == 0, done.err
    assert_same(run, calm)


def test_one_worker_alone_is_replaced(trials: Trials) -> None:
    calm = trials.calm(script(), "--workers", "1")
    done, run = trials.train(script(forward="step() == 17 and die()"), "--workers", "1")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
