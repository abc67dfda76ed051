"""Workers that read other samples, hold other weights or compute something else than the others are found and named."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from served import Reach, servers
from torch import Tensor

from shoal.data.tensors import TensorSource
from shoal.launch.session import Session
from shoal.strategies.base import Work
from shoal.testing.checks import check_coverage
from shoal.testing.contract import short
from shoal.testing.models import MLP
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.trial import Trial
from shoal.train.run import Run

pytestmark = [pytest.mark.contract, pytest.mark.ranks]

PLAN = Plan("mlp", samples=1003, epochs=4, global_batch=50)  # 84 steps


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with servers(tmp_path_factory.mktemp("servers"), 1) as directory:
        yield directory


def other_weights(session: Session) -> None:
    """As a faulty machine, or a callback that writes to the model: after some steps one worker has other weights."""
    original = Run.step

    def step(self: Run, work: Work) -> float:
        loss = original(self, work)
        if session.world.rank == 2 and 3 <= self.cursor.step < 20:
            with torch.no_grad():
                next(self._spec.program.model.parameters()).add_(0.01)
        return loss

    Run.step = step  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "strategy", ["allreduce", "parameter-server", "incremental"], ids=["allreduce", "servers", "incremental"]
)
def test_other_weights(ranks: RankHarness, tmp_path: Path, fleet: Path, strategy: str) -> None:
    """Servers hold the weights, and hand them out anew: only what they do not know of can differ."""
    hurt = other_frozen_weights if strategy == "parameter-server" else other_weights
    trial = Trial(ranks, strategy, tmp_path, {"incremental.h": 2}, True, Reach(fleet)).prepared(hurt)
    subject = short("branches") if strategy == "parameter-server" else PLAN
    with pytest.raises(AssertionError, match=r"worker 2 on \S+ holds other parameters or .* than worker 0 on"):
        trial.run(3, subject)


def other_frozen_weights(session: Session) -> None:
    original = Run._bind

    def bind(self: Run, *given: Any, **named: Any) -> None:
        if session.world.rank == 2:
            with torch.no_grad():
                for parameter in self._spec.program.model.parameters():
                    parameter.add_(0.0 if parameter.requires_grad else 1e-6)  # too little for the loss to tell
        original(self, *given, **named)

    Run._bind = bind  # type: ignore[method-assign]


def other_samples(session: Session) -> None:
    original = TensorSource.fetch

    def fetch(self: TensorSource, *given: Any) -> Any:
        inputs, targets = original(self, *given)
        return inputs + 0.1, targets

    if session.world.rank == 1:
        TensorSource.fetch = fetch  # type: ignore[method-assign]


def test_other_samples(ranks: RankHarness, tmp_path: Path) -> None:
    trial = Trial(ranks, "allreduce", tmp_path).prepared(other_samples)
    with pytest.raises(AssertionError, match=r"worker 1 on \S+ differs from worker 0 on \S+ in the first samples"):
        trial.run(3, PLAN)


def other_forward(session: Session) -> None:
    """A tensor that is neither parameter nor buffer, drawn by each worker for itself."""
    original = MLP.forward
    drawn = torch.randn(1, generator=torch.Generator().manual_seed(int(session.world.rank == 1)))

    def forward(self: MLP, x: Tensor) -> Tensor:
        return original(self, x) * drawn

    MLP.forward = forward  # type: ignore[method-assign]


@pytest.mark.parametrize("strategy", ["allreduce", "async"])
def test_another_forward(ranks: RankHarness, tmp_path: Path, fleet: Path, strategy: str) -> None:
    trial = Trial(ranks, strategy, tmp_path, {}, True, Reach(fleet)).prepared(other_forward)
    with pytest.raises(AssertionError, match=r"worker 1 on \S+ and worker 0 on \S+ .* find another loss"):
        trial.run(3, PLAN)


class BusyComparing:
    """One worker does not get to the end of its first pass, which is for comparing, before another trains."""

    def __init__(self, directory: Path) -> None:
        self._mark = directory / "another trains"

    def __call__(self, session: Session) -> None:
        original, passes = MLP.forward, itertools.count(1)

        def forward(model: MLP, x: Tensor) -> Tensor:
            which = session.world.rank, next(passes)
            if which == (1, 2):
                self._mark.touch()
            elif which == (2, 1):
                until = time.monotonic() + 30.0
                while not self._mark.exists():
                    assert time.monotonic() < until, "the others wait for this worker"
                    time.sleep(0.005)
            return original(model, x)

        MLP.forward = forward  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("strategy", "how"), [("async", {}), ("parameter-server", {"server.consistency": "ssp:2"})], ids=["asp", "ssp"]
)
def test_nobody_waits_for_a_comparison_where_nobody_waits_for_a_step(
    ranks: RankHarness, tmp_path: Path, fleet: Path, strategy: str, how: dict[str, Any]
) -> None:
    trial = Trial(ranks, strategy, tmp_path, how, True, Reach(fleet)).prepared(BusyComparing(tmp_path))
    check_coverage(trial.run(3, short("mlp")), short("mlp"))


def test_whoever_means_it_so_can_say_so(ranks: RankHarness, tmp_path: Path) -> None:
    trial = Trial(ranks, "allreduce", tmp_path, {"compare": "off"}).prepared(other_samples).prepared(other_forward)
    check_coverage(trial.run(2, short("mlp")), short("mlp"))


def test_the_comparison_leaves_no_trace(ranks: RankHarness, tmp_path: Path) -> None:
    """Draws, running statistics and gradients are as if nobody had looked."""
    trial = Trial(ranks, "allreduce", tmp_path)
    for subject in ("resnet", "gpt"):
        plan = short(subject, epochs=2)
        looked, not_looked = trial.train(2, *(trial.order(plan, compare=word) for word in ("on", "off")))
        assert looked.summary["params_sha256"] == not_looked.summary["params_sha256"]
