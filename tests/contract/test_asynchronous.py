"""Asynchronous training on real ranks and servers: alone it is ordinary training; together every sample counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Reach, servers

from shoal.core.config import Clip
from shoal.testing.checks import PARAMETERS, check_coverage, check_evaluation, distance
from shoal.testing.contract import CLIPS, short
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.reference import reference
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with servers(tmp_path_factory.mktemp("servers")) as directory:
        yield directory


def trial_of(ranks: RankHarness, directory: Path, fleet: Path, strategy: str, **how: Any) -> Trial:
    return Trial(ranks, strategy, directory, how, True, Reach(fleet))


@pytest.mark.parametrize(("subject", "optimizer"), [("mlp", "adamw"), ("resnet", "momentum"), ("gpt", "adamw")])
@pytest.mark.parametrize("consistency", ["asp", "ssp:2"])
def test_alone_it_is_ordinary_training(
    ranks: RankHarness, tmp_path: Path, fleet: Path, subject: str, optimizer: str, consistency: str
) -> None:
    trial = trial_of(ranks, tmp_path, fleet, "parameter-server", **{"server.consistency": consistency})
    plan = short(subject, optimizer=optimizer)
    trained = trial.run(1, plan)
    expected = reference(plan)
    assert distance(trained.parameters, {**expected.parameters, **expected.buffers}) <= PARAMETERS
    check_coverage(trained, plan)
    check_evaluation(trained, plan)


@pytest.mark.parametrize("kind", ["norm", "value", "all"])
@pytest.mark.parametrize("subject", ["mlp", "resnet"])
def test_alone_it_clips_as_ordinary_training_does(
    ranks: RankHarness, tmp_path: Path, fleet: Path, subject: str, kind: str
) -> None:
    trial = trial_of(ranks, tmp_path, fleet, "parameter-server", **{"server.consistency": "asp"})
    plan = short(subject, clip=CLIPS[kind])
    trained = trial.run(1, plan)
    expected, free = reference(plan), reference(short(subject))
    assert distance(trained.parameters, {**expected.parameters, **expected.buffers}) <= PARAMETERS
    assert distance(free.parameters, expected.parameters) > 100 * PARAMETERS, f"{plan.clip} clips nothing"
    check_coverage(trained, plan)


@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        ("parameter-server", {"server.consistency": "asp"}),
        ("parameter-server", {"server.consistency": "ssp:1"}),
        ("async", {}),
        ("async", {"asynchronous.damping": False, "clip": {"norm": 1.0}}),
    ],
)
def test_together_every_sample_counts_once_and_they_learn(
    ranks: RankHarness, tmp_path: Path, fleet: Path, strategy: str, how: dict[str, Any]
) -> None:
    plan = Plan("mlp", epochs=4)
    trained = trial_of(ranks, tmp_path, fleet, strategy, **how).run(3, plan)
    check_coverage(trained, plan)
    check_evaluation(trained, plan)
    assert trained.losses[-1] < 0.8 * trained.losses[0]


def test_with_elastic_averaging_central_weights_follow_the_workers(
    ranks: RankHarness, tmp_path: Path, fleet: Path
) -> None:
    plan = Plan("mlp", epochs=12)
    trained = trial_of(ranks, tmp_path, fleet, "async", **{"asynchronous.mixing": 0.3}).run(2, plan)
    check_coverage(trained, plan)
    check_evaluation(trained, plan)
    assert trained.losses[-1] < 0.9 * trained.losses[0]


def test_with_elastic_averaging_weights_stay_within_their_limits(
    ranks: RankHarness, tmp_path: Path, fleet: Path
) -> None:
    plan = Plan("mlp", epochs=2, clip=Clip(weights=(-0.0625, 0.0625)))
    free = Plan("mlp", epochs=2)
    trial = trial_of(ranks, tmp_path, fleet, "async", **{"asynchronous.mixing": 0.3})
    for limited, one in ((True, plan), (False, free)):
        trained = trial.run(2, one)
        largest = max(float(value.abs().max()) for value in trained.parameters.values())
        assert (largest <= 0.0625) == limited
        check_coverage(trained, one)


@pytest.mark.parametrize("how", [{"asynchronous.mixing": 0.3}, {"clip": {"norm": 1.0}}], ids=["mixing", "clip"])
def test_gradients_of_tables_are_sparse_for_servers_and_not_for_optimizers(
    ranks: RankHarness, tmp_path: Path, fleet: Path, how: dict[str, Any]
) -> None:
    plan = short("table", optimizer="adamw")
    check_coverage(trial_of(ranks, tmp_path, fleet, "async", **how).run(2, plan), plan)


def test_running_statistics_are_those_of_all_workers(ranks: RankHarness, tmp_path: Path, fleet: Path) -> None:
    plan = short("resnet")
    trained = trial_of(ranks, tmp_path, fleet, "async").run(2, plan)
    check_coverage(trained, plan)
    expected = reference(plan)
    for name, buffer in expected.buffers.items():
        if name.endswith("num_batches_tracked"):
            assert trained.parameters[name].equal(buffer), "a batch was not counted once"


def test_it_goes_on_from_a_checkpoint_of_another_strategy(ranks: RankHarness, tmp_path: Path, fleet: Path) -> None:
    plan, where = short("mlp", optimizer="adamw"), tmp_path / "run"
    synchronous = trial_of(ranks, tmp_path, fleet, "allreduce", **{"checkpoint.every": "1 epoch"})
    synchronous.train(2, synchronous.order(plan, run_dir=where, until=7))
    served = trial_of(ranks, tmp_path, fleet, "parameter-server", **{"checkpoint.every": "1 epoch"})
    served.train(2, served.order(plan, run_dir=where, until=4))
    (trained,) = synchronous.train(3, synchronous.order(plan, run_dir=where))
    assert distance(trained.parameters, reference(plan).parameters) <= PARAMETERS
    assert trained.summary["coverage"]["once"] == plan.samples * plan.epochs
