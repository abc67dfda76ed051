"""Parameter servers with BSP keep the contract of strategies, as `allreduce` does: the mathematics is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Reach, servers

from shoal.testing.checks import check_against_reference
from shoal.testing.contract import StrategyContract, short
from shoal.testing.ranks import RankHarness
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks, pytest.mark.parity]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One server: it cuts no tensor, so that neither training nor what others have left there changes a bit."""
    with servers(tmp_path_factory.mktemp("servers"), 1) as directory:
        yield directory


class TestBSP(StrategyContract):
    strategy = "parameter-server"
    worker_counts = (2, 3)
    subjects = ("gpt", "mlp", "resnet")
    schedules = ("samples", "torch")
    in_turn = True

    @pytest.fixture
    def trial(self, ranks: RankHarness, tmp_path: Path, fleet: Path) -> Trial:
        return Trial(ranks, self.strategy, tmp_path, self.how, self.replicated, Reach(fleet))


def test_tensors_cut_over_servers(ranks: RankHarness, tmp_path: Path) -> None:
    with servers(tmp_path / "servers", 3) as directory:
        trial = Trial(ranks, "parameter-server", tmp_path, {}, True, Reach(directory))
        for subject in ("resnet", "gpt"):  # in buckets that are staged one by one, too
            check_against_reference(trial, 2, short(subject, optimizer="adamw"), comm__bucket_mib=0.002)


def test_batch_normalisation_over_the_whole_batch(ranks: RankHarness, tmp_path: Path, fleet: Path) -> None:
    trial = Trial(ranks, "parameter-server", tmp_path, {}, True, Reach(fleet))
    check_against_reference(trial, 3, short("resnet", statistics="global"), weights=[2, 0, 1])
