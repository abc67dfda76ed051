"""Two prepared runs in one script: one after the other, or in turns."""

from __future__ import annotations

import json

import pytest
from e2e import Shoal

pytestmark = pytest.mark.ranks

SCRIPT = """
import json, sys

import torch
from torch import nn

import shoal


def prepared(seed):
    torch.manual_seed(seed)
    return shoal.prepare(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), lambda params: torch.optim.SGD(params, lr=0.1),
        nn.CrossEntropyLoss(), global_batch=8,
    )


data = torch.randn(21, 4, generator=torch.Generator().manual_seed(1)), torch.arange(21) % 2
first, second = prepared(1), prepared(2)
losses = []
if "turns" in sys.argv:
    for one, other in zip(first.batches(data), second.batches(data), strict=True):
        losses += [first.step(one), second.step(other)]
else:
    for run in (first, second):
        losses += [run.step(batch) for batch in run.batches(data)]
        run.finish()
print(json.dumps(losses))
"""


def losses(shoal_here: Shoal, *words: str) -> list[float]:
    done = shoal_here.train(*words)
    assert done.status == 0, done
    return list(json.loads(next(line for line in done.out.splitlines() if line.startswith("["))))


def test_in_turns_they_are_the_same_on_any_number_of_workers(shoal_here: Shoal) -> None:
    shoal_here.write(SCRIPT)
    alone = losses(shoal_here, "--workers", "1", "--", "turns")
    for strategy in (["allreduce"], ["hybrid", "--set", "hybrid.outer=allreduce"]):
        together = losses(shoal_here, "--workers", "2", "--strategy", *strategy, "--", "turns")
        assert together == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("strategy", ["incremental", "parameter-server", "async", "hybrid"])
def test_in_turns_they_are_refused_where_one_run_at_a_time_is_trained(shoal_here: Shoal, strategy: str) -> None:
    shoal_here.write(SCRIPT)
    for workers in ("1", "2"):
        done = shoal_here.train("--workers", workers, "--strategy", strategy, "--run-dir", "run", "--", "turns")
        assert f"strategy={strategy} trains one run at a time" in done.message(), done
        assert "use strategy=allreduce" in done.message()


@pytest.mark.parametrize("strategy", ["incremental", "parameter-server"])
def test_one_after_the_other_they_train(shoal_here: Shoal, strategy: str) -> None:
    shoal_here.write(SCRIPT)
    found = losses(shoal_here, "--workers", "2", "--strategy", strategy, "--set", "incremental.h=1")
    assert len(found) == 6
