"""`statistics=global`: batch normalisation over all workers is that of plain PyTorch, with the whole batch in one
process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.testing.checks import check_nonfinite, check_repeatable, check_result, check_resumes, check_training
from shoal.testing.contract import UNEVEN
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks, pytest.mark.parity]


def over_all(subject: str, **changes: Any) -> Plan:
    """Three epochs of 100, 100 and few samples. Of a residual network 3 are enough to normalise by, which is fewer than
    four workers."""
    samples = 203 if subject == "resnet" else 214
    return Plan(subject, samples=samples, epochs=3, statistics="global", **changes)


@pytest.fixture
def trial(ranks: RankHarness, tmp_path: Path) -> Trial:
    return Trial(ranks, "allreduce", tmp_path)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_kind_of_layer_is_that_of_plain_pytorch(trial: Trial, workers: int) -> None:
    check_training(trial.run(workers, over_all("norms")), over_all("norms"))


def test_on_a_single_worker(trial: Trial) -> None:
    single = trial.with_strategy("single")
    check_training(single.run(1, over_all("norms")), over_all("norms"))


@pytest.mark.parametrize("workers", [2, 4])
def test_residual_network_and_its_evaluation(trial: Trial, workers: int) -> None:
    check_result(trial.run(workers, over_all("resnet")), over_all("resnet"))


@pytest.mark.parametrize("workers", [2, 3])
def test_uneven_shares_and_workers_without_any(trial: Trial, workers: int) -> None:
    plan = over_all("norms")
    for trained in trial.train(workers, *(trial.order(plan, weights=list(weights)) for weights in UNEVEN[workers])):
        check_training(trained, plan)


@pytest.mark.parametrize("workers", [2, 3])
def test_over_gloo(ranks: RankHarness, tmp_path: Path, workers: int) -> None:
    trial = Trial(ranks, "allreduce", tmp_path, {"comm.backend": "gloo"})
    check_training(trial.run(workers, over_all("norms")), over_all("norms"))


def test_gives_the_same_bits_twice(trial: Trial) -> None:
    check_repeatable(trial, 3, over_all("norms"))


def test_a_loss_that_is_not_a_number_names_the_worker_that_had_it(trial: Trial) -> None:
    check_nonfinite(trial, 2, Plan("resnet", samples=437, statistics="global"), [1], position=370)


def test_goes_on_from_a_checkpoint(trial: Trial) -> None:
    check_resumes(trial, 3, over_all("resnet"), steps=4)


def test_in_teams(ranks: RankHarness, tmp_path: Path) -> None:
    trial = Trial(ranks, "hybrid", tmp_path, {"hybrid.outer": "allreduce", "hybrid.team": 2})
    check_training(trial.run(3, over_all("norms")), over_all("norms"))
