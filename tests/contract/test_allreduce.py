"""`allreduce` keeps the contract of strategies, through shared memory and through gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.testing.checks import (
    check_against_reference,
    check_nonfinite,
    check_repeatable,
    check_result,
    check_same_bits,
)
from shoal.testing.contract import StrategyContract, short
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.subjects import MAIN
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks, pytest.mark.parity]


class TestAllReduce(StrategyContract):
    strategy = "allreduce"


class TestOverGloo:
    """The same through gloo: fewer cases, since only the sums are taken elsewhere."""

    @pytest.fixture
    def trial(self, ranks: RankHarness, tmp_path: Path) -> Trial:
        return Trial(ranks, "allreduce", tmp_path, {"comm.backend": "gloo"})

    @pytest.mark.parametrize("subject", MAIN)
    def test_gives_what_plain_pytorch_gives(self, trial: Trial, subject: str) -> None:
        for trained in trial.train(3, trial.order(short(subject)), trial.order(short(subject), weights=[1, 0, 2])):
            check_result(trained, short(subject))

    def test_gives_the_same_bits_twice(self, trial: Trial) -> None:
        check_repeatable(trial, 2, short("mlp"))

    def test_gives_the_bits_of_shared_memory(self, trial: Trial) -> None:
        shared = trial.with_strategy("allreduce", **{"comm.backend": "shm"})
        check_same_bits(trial.run(2, short("resnet")), shared.run(2, short("resnet")))

    def test_unused_and_sometimes_used_parameters(self, trial: Trial) -> None:
        check_against_reference(trial, 3, short("branches"))

    def test_a_loss_that_is_not_a_number_leaves_everything_as_it_was(self, trial: Trial) -> None:
        check_nonfinite(trial, 2, Plan("resnet", samples=437), [1], position=370)


@pytest.mark.parametrize("bucket_mib", [1e-4, 1e-3])
def test_many_small_buckets(ranks: RankHarness, tmp_path: Path, bucket_mib: float) -> None:
    trial = Trial(ranks, "allreduce", tmp_path, {"comm.bucket_mib": bucket_mib})
    for subject in ("mlp", "resnet", "branches"):
        check_against_reference(trial, 3, short(subject))


@pytest.mark.parametrize(("strategy", "workers"), [("single", 1), ("allreduce", 3)])
def test_sparse_gradients_of_an_embedding_are_added_up_as_dense_ones(
    ranks: RankHarness, tmp_path: Path, strategy: str, workers: int
) -> None:
    trial = Trial(ranks, strategy, tmp_path)
    check_against_reference(trial, workers, short("table", optimizer="sgd"))
