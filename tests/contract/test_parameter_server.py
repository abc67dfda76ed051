"""Parameter servers with BSP: the mathematics is that of `allreduce`, held to the same checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Reach, servers

from shoal.core.config import Clip
from shoal.testing.checks import (
    check_against_reference,
    check_clipping,
    check_commits,
    check_given_back,
    check_near_in_bfloat16,
    check_nonfinite,
    check_repeatable,
    check_result,
    check_resumes,
    check_same_bits_on_any_number,
)
from shoal.testing.contract import short
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One server: it cuts no tensor, so that neither training nor what others have left there changes a bit."""
    with servers(tmp_path_factory.mktemp("servers"), 1) as directory:
        yield directory


@pytest.fixture
def trial(ranks: RankHarness, tmp_path: Path, fleet: Path) -> Trial:
    return Trial(ranks, "parameter-server", tmp_path, {}, True, Reach(fleet))


@pytest.mark.parametrize(("subject", "workers"), [("mlp", 2), ("resnet", 3), ("gpt", 2), ("branches", 3)])
def test_gives_what_plain_pytorch_gives(trial: Trial, subject: str, workers: int) -> None:
    check_against_reference(trial, workers, short(subject))


def test_gives_the_same_bits_twice_and_on_any_number_of_workers(trial: Trial) -> None:
    check_repeatable(trial, 3, short("mlp"))
    check_same_bits_on_any_number(trial, (1, 3), short("resnet"))


def test_bfloat16(trial: Trial) -> None:
    check_near_in_bfloat16(trial, 2, short("mlp", epochs=2))


def test_uneven_shares(trial: Trial) -> None:
    plan = short("mlp")
    for trained in trial.train(3, *(trial.order(plan, weights=weights) for weights in ([1, 2, 1], [1, 0, 2]))):
        check_result(trained, plan)


@pytest.mark.parametrize(
    ("subject", "clip"),
    [
        ("mlp", Clip(norm=0.05)),
        ("gpt", Clip(value=0.004)),
        ("resnet", Clip(norm=0.05, value=0.01, weights=(-0.25, 0.25))),
    ],
    ids=["norm", "value", "all"],
)
def test_clipping(trial: Trial, subject: str, clip: Clip) -> None:
    check_clipping(trial, 3, short(subject, clip=clip))


def test_what_is_handed_out_is_not_yet_committed(trial: Trial) -> None:
    check_commits(trial, 2, short("mlp"), steps=1)


def test_a_loss_that_is_not_a_number_leaves_everything_as_it_was(trial: Trial) -> None:
    check_nonfinite(trial, 2, Plan("mlp", samples=437), [1], 370)


def test_a_run_that_goes_on_is_the_run_that_was_never_interrupted(trial: Trial) -> None:
    check_resumes(trial, 2, short("resnet", optimizer="adamw"), steps=4)
    single = trial.with_strategy("single")
    check_resumes(single, 1, short("mlp", optimizer="adamw"), steps=4, into=trial, into_workers=2)


def test_the_model_is_given_back(trial: Trial) -> None:
    check_given_back(trial, 2, short("mlp", epochs=1))


def test_tensors_cut_over_servers(ranks: RankHarness, tmp_path: Path) -> None:
    with servers(tmp_path / "servers", 3) as directory:
        trial = Trial(ranks, "parameter-server", tmp_path, {}, True, Reach(directory))
        for subject in ("resnet", "gpt"):  # in buckets that are staged one by one, too
            check_against_reference(trial, 2, short(subject, optimizer="adamw"), comm__bucket_mib=0.002)
