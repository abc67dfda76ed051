"""Where nobody is left to copy from: the last one saves before it goes, and who comes next waits for the lock."""

from __future__ import annotations

import pytest
from self_hurt import Trials, assert_same, script

pytestmark = pytest.mark.ranks
NORM = "nn.BatchNorm1d(16),"


def test_all_are_told_to_go_in_one_step(trials: Trials) -> None:
    calm = trials.calm(script(norm=NORM), "--workers", "2")
    told = "step() == 14 and once(f'told {rank()}') and os.kill(os.getpid(), signal.SIGTERM)"
    done, run = trials.train(script(norm=NORM, forward=told), "--workers", "2")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    steps = [event["cursor"]["step"] for event in run.events("step")]
    assert steps == sorted(set(steps)), "a step was done twice, though everyone left in good order"


def test_the_only_worker_freezes(trials: Trials) -> None:
    """Its replacement is there before it is killed: its stack is taken first, and it holds the run directory."""
    calm = trials.calm(script(norm=NORM), "--workers", "1")
    frozen = script(norm=NORM, forward="step() == 14 and die(number=signal.SIGSTOP)")
    done, run = trials.train(frozen, "--workers", "1")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)


def test_a_newcomer_has_buffers_that_no_checkpoint_holds(trials: Trials) -> None:
    kept_nowhere = "        self.register_buffer('seen', torch.zeros(1), persistent=False)\n"
    forward = "self.seen.add_(1.0); x = x + 0.01 * self.seen; {hurt}"
    passing = script(norm=NORM, forward=forward).replace("        self.body =", f"{kept_nowhere}        self.body =")
    calm = trials.calm(passing.replace("{hurt}", "pass"), "--workers", "3")
    hurt = "rank() == 1 and step() == 14 and die(); step() == 20 and size() < 3 and until(somebody_at_the_door)"
    done, run = trials.train(passing.replace("{hurt}", hurt), "--workers", "3")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert len(run.events("view")[-1]["pids"]) == 3, "the newcomer was not let in"
