"""Two models in one script, each prepared as a run of its own, the loss of one going through the other (a GAN)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
from shoal.core.order import epoch_order
from shoal.launch.session import Session
from shoal.testing.checks import PARAMETERS, distance
from shoal.testing.ranks import RankHarness

pytestmark = [pytest.mark.contract, pytest.mark.ranks, pytest.mark.parity]

SAMPLES, BATCH, EPOCHS = 53, 10, 2


class Gan:
    """The two models, their losses and their data, the same bits wherever they are built."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.forger = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
        self.judge = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        self.real, self.noise = torch.randn(SAMPLES, 6) + 1.0, torch.randn(SAMPLES, 4)

    def judging(self, judge: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        real, noise = batch
        return _told(judge(real), 1.0) + _told(judge(self.forger(noise).detach()), 0.0)

    def forging(self, forger: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return _told(self.judge(forger(batch[1])), 1.0)

    @property
    def parameters(self) -> dict[str, Tensor]:
        both = nn.ModuleDict({"forger": self.forger, "judge": self.judge})
        return {name: p.detach().clone() for name, p in both.named_parameters()}


def _told(logits: Tensor, truth: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.5)


def in_plain_pytorch() -> dict[str, Tensor]:
    gan = Gan()
    optimizers = {"judge": _optimizer(gan.judge.parameters()), "forger": _optimizer(gan.forger.parameters())}
    for epoch in range(EPOCHS):
        order = torch.from_numpy(epoch_order(0, epoch, SAMPLES).copy())
        for rows in order.split(BATCH):
            batch = gan.real[rows], gan.noise[rows]
            for name, loss, model in (("judge", gan.judging, gan.judge), ("forger", gan.forging, gan.forger)):
                optimizers[name].zero_grad()
                loss(model, batch).backward()  # type: ignore[no-untyped-call]
                optimizers[name].step()
    return gan.parameters


def with_shoal(session: Session, directory: str, settings: dict[str, Any]) -> dict[str, Tensor]:
    gan = Gan()
    data = torch.utils.data.TensorDataset(gan.real, gan.noise)
    common = {"global_batch": BATCH, "seed": 0, "epochs": EPOCHS, "comm.timeout_s": 30.0, **settings}
    judge = shoal.prepare(gan.judge, _optimizer, gan.judging, run_dir=f"{directory}/judge", **common)
    forger = shoal.prepare(gan.forger, _optimizer, gan.forging, run_dir=f"{directory}/forger", **common)
    with judge, forger:
        for _ in range(EPOCHS):
            for batch, other in zip(judge.batches(data), forger.batches(data), strict=True):
                judge.step(batch)
                forger.step(other)
        return gan.parameters


@pytest.mark.parametrize("workers", [1, 2])
def test_the_loss_of_one_goes_through_the_other(ranks: RankHarness, tmp_path: Path, workers: int) -> None:
    expected = in_plain_pytorch()
    for found in ranks.run(workers, with_shoal, str(tmp_path), {"strategy": "allreduce"}):
        assert distance(found, expected) <= PARAMETERS
