"""A worker dies while gradients travel coded: the others go on with what their codecs have left out, a new one comes
with nothing, and every sample counts once. What the dead one had left out is lost, so the model is near, not equal."""

from __future__ import annotations

import pytest
from self_hurt import Trials, script

pytestmark = pytest.mark.ranks

SAMPLES = 3 * 237


@pytest.mark.parametrize(("codec", "victim", "backend"), [("topk:0.2", 0, "shm"), ("auto", 2, "gloo")])
def test_a_worker_dies(trials: Trials, codec: str, victim: int, backend: str) -> None:
    how = ("--workers", "3", "--set", f"comm.codec={codec}", "--set", f"comm.backend={backend}")
    calm = trials.calm(script(), *how)
    dies = f"rank() == min({victim}, size() - 1) and step() in (3, 14) and die(f'at {{step()}}')"
    done, run = trials.train(script(forward=dies), *how)
    assert done.status == 0, done.err
    summary, expected = run.summary(), calm.summary()
    assert summary["status"] == "completed"
    assert summary["coverage"] == {"expected": SAMPLES, "once": SAMPLES, "missed": 0, "repeated": 0}
    assert len(summary["faults"]) == 2
    assert summary["steps"] == expected["steps"]
    loss, without = (one["final"]["test_loss"] for one in (summary, expected))
    assert abs(loss - without) <= 0.25 * without


def test_all_die_and_new_ones_go_on_from_the_checkpoint(trials: Trials) -> None:
    hurt = script(forward="step() == 17 and die(f'{rank()}')", settings="checkpoint={'every': '5 steps'},")
    done, run = trials.train(hurt, "--workers", "2", "--set", "comm.codec=powersgd:1")
    assert done.status == 0, done.err
    summary = run.summary()
    assert summary["coverage"] == {"expected": SAMPLES, "once": SAMPLES, "missed": 0, "repeated": 0}
    assert summary["final"]["test_loss"] < 1.0
