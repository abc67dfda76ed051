"""`statistics=global`: a worker dies between two layers of batch normalisation, forward or backward, while the others
wait for its part. The step is discarded and done again; in float64 nobody can tell afterwards."""

from __future__ import annotations

import pytest
from self_hurt import Trials, assert_same, script
from test_killed_at_moments import assert_in_place

pytestmark = pytest.mark.ranks

NORM = "nn.BatchNorm1d(16), Between(), nn.BatchNorm1d(16),"
BETWEEN = """
class Between(nn.Module):
    "What lies between two layers."
    def forward(self, x):
        if self.training:
            {forward}
        if x.requires_grad:
            x.register_hook(self.back)
        return x * 1.0

    def back(self, grad):
        {backward}

class Net(nn.Module):
"""


def hurt(forward: str = "pass", backward: str = "pass", settings: str = "") -> str:
    # float64: sums over three workers and over two differ in the sixteenth digit, a sample that is lost shows
    text = script(norm=NORM, settings=f"statistics='global', {settings}")
    text = text.replace("class Net(nn.Module):\n", BETWEEN.format(forward=forward, backward=backward))
    text = text.replace("self.body(x)", "self.body(x.double())").replace("model=Net()", "model=Net().double()")
    return text.replace("grain=5,", "").replace(
        "global_batch=20,", "" if "global_batch" in settings else "global_batch=20,"
    )


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize(("way", "victim"), [("forward", 2), ("backward", 0)])
def test_a_worker_dies_between_two_layers(trials: Trials, way: str, victim: int, backend: str) -> None:
    words = ("--workers", "3", "--set", f"comm.backend={backend}")
    calm = trials.calm(hurt(), *words)
    done, run = trials.train(hurt(**{way: f"rank() == {victim} and step() == 14 and die()"}), *words)
    assert done.status == 0, done.err
    assert_same(run, calm, 1e-12)
    assert len(run.summary()["faults"]) == 1
    assert_in_place(run, 1)


def test_more_workers_than_samples_in_the_last_batch(trials: Trials) -> None:
    """237 samples in batches of 47 leave 2: two of four workers have none, and after a death one of three."""
    few = "global_batch=47,"
    alone = trials.calm(hurt(settings=few), "--workers", "1")
    done, run = trials.train(hurt("rank() == 1 and step() == 5 and die()", settings=few), "--workers", "4")
    assert done.status == 0, done.err
    assert_same(run, alone, 1e-10)
