"""Rounds of local steps in which workers die, freeze and come: every sample shapes the model once, and it learns."""

from __future__ import annotations

import pytest
from e2e import Run
from self_hurt import Trials, script

pytestmark = pytest.mark.ranks

PLAIN = ("--strategy", "incremental", "--set", "incremental.h=4", "--set", "incremental.rho=0.3")
TEAMS = ("--strategy", "hybrid", "--set", "hybrid.team=2", "--set", "incremental.h=4")
MOMENTS = {
    "a local step": {"forward": "rank() == {victim} and step() >= 14 and die()"},
    "the first round": {"forward": "rank() == {victim} and die()"},
    # the others leave it a task
    "the last round": {"forward": "step() >= 33 and (die() if rank() == {victim} else until((MARKS / 'die').exists))"},
    "an evaluation": {"evaluation": "rank() == {victim} and step() == 24 and die()"},
    "two rounds": {"forward": "rank() == min({victim}, size() - 1) and step() >= 14 and die(f'at {{step() > 22}}')"},
}


def assert_whole(run: Run, faults: int) -> None:
    summary = run.summary()
    assert summary["status"] == "completed"
    assert summary["coverage"] == {"expected": 711, "once": 711, "missed": 0, "repeated": 0}
    assert len(summary["faults"]) == faults, summary["faults"]
    assert summary["final"]["test_loss"] < 1.0, summary["final"]  # it was 1.4 before training


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_dies_in_a_round(trials: Trials, moment: str, victim: int) -> None:
    hurts = {name: text.format(victim=victim) for name, text in MOMENTS[moment].items()}
    done, run = trials.train(script(**hurts), "--workers", "3", *PLAIN)
    assert done.status == 0, done.err
    assert_whole(run, 2 if moment == "two rounds" else 1)


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_worker_of_a_team_dies_in_a_round(trials: Trials, victim: int) -> None:
    hurt = script(forward=f"rank() == {victim} and step() >= 14 and die()")
    done, run = trials.train(hurt, "--workers", "4", *TEAMS)
    assert done.status == 0, done.err
    assert_whole(run, 1)


def test_a_worker_that_freezes_is_put_out_and_its_tasks_are_done_by_others(trials: Trials) -> None:
    hurt = script(forward="rank() == 1 and step() >= 14 and once('freeze') and os.kill(os.getpid(), signal.SIGSTOP)")
    done, run = trials.train(hurt, "--workers", "3", *PLAIN, "--set", "elastic.lease_s=1")
    assert done.status == 0, done.err
    assert_whole(run, 1)


def test_survivors_keep_their_local_steps(trials: Trials) -> None:
    """The work of a survivor is not done again: each of its units goes through the model once."""
    hurt = script(
        forward="open(MARKS / f'seen-{os.getpid()}', 'a').write(f'{len(x)}\\n'); "
        "rank() == 2 and step() >= 14 and die()",
    )
    done, run = trials.train(hurt, "--workers", "3", *PLAIN)
    assert done.status == 0, done.err
    assert_whole(run, 1)
    seen = sum(int(line) for path in (run.path.parent / "marks").glob("seen-*") for line in path.read_text().split())
    # what is seen more than once is what the dead worker had done of its round: at most its share, four steps of 7
    assert 711 <= seen <= 711 + 4 * 20
