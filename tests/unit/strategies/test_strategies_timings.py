"""What a worker tells of its time: computing is apart from adding up, although both happen within backward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import shoal.strategies.gradient_accumulator as module
from shoal.comm.control import ControlPage
from shoal.comm.solo import SoloGroup
from shoal.core.cursor import Batches, Cursor
from shoal.core.order import epoch_order
from shoal.core.spans import Spans
from shoal.core.world import View, World
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.base import Pass, Runtime, Work
from shoal.strategies.objective import make_objective
from shoal.strategies.program import Program

pytestmark = pytest.mark.unit


class Clock:
    """Stands still but for what is done to it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(nn.Module):
    """Takes a second for forward and two for backward."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.body, self.clock = nn.Linear(3, 2), clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 1.0
        output: torch.Tensor = self.body(x)
        output.register_hook(lambda grad: setattr(self.clock, "now", self.clock.now + 2.0))
        return output


def test_adding_up_within_backward_is_not_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, control = Clock(), ControlPage()
    runtime = Runtime(World(), View(1, ()), SoloGroup(), control, seed=0, spans=Spans(clock))
    program = Program(
        Slow(clock), make_objective(nn.CrossEntropyLoss()), lambda params: torch.optim.SGD(params, lr=0.1)
    )
    strategy = AllReduce()
    replica = strategy.bind(program, runtime)
    ready = replica._buckets.reducer.ready

    def slowly(bucket: int) -> None:
        clock.now += 10.0
        ready(bucket)

    monkeypatch.setattr(replica._buckets.reducer, "ready", slowly)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))
    batch = Batches(8, 8, 8).at(Cursor())
    data = torch.randn(8, 3), torch.randint(2, (8,))
    work = Work(batch, [Pass(batch.grains, epoch_order(0, 0, 8), data)], (0.1,), data_s=0.5)
    (first,) = strategy.step(replica, work).timings
    assert first == {"data": 0.5, "forward": 1.0, "backward": 2.0, "reduce": 0.0}
    runtime.spans.take()
    (second,) = strategy.step(replica, work).timings
    assert second == {"data": 0.5, "forward": 1.0, "backward": 2.0, "reduce": 20.0}, "a bucket, and the statistics"
    strategy.close(replica)
    control.close()
