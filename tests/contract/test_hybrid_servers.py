"""Teams that add up their gradients, and servers between them: the mathematics does not know of teams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Reach, servers

from shoal.core.config import Clip, HybridSettings, ServerSettings
from shoal.launch.session import Session
from shoal.strategies.hybrid import compose
from shoal.testing.checks import (
    PARAMETERS,
    check_clipping,
    check_coverage,
    check_evaluation,
    check_gradients_from_elsewhere,
    check_nonfinite,
    check_result,
    check_resumes,
    check_same_bits,
    distance,
)
from shoal.testing.contract import short
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.reference import reference
from shoal.testing.trial import Trained, Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One server: it cuts no tensor, so that neither training nor what others have left there changes a bit."""
    with servers(tmp_path_factory.mktemp("servers"), 1) as directory:
        yield directory


@pytest.fixture
def teams(ranks: RankHarness, tmp_path: Path, fleet: Path) -> Trial:
    """Teams of two; of an odd number of workers the last is on its own."""
    how = {"hybrid.outer": "parameter-server", "hybrid.team": 2}
    return Trial(ranks, "hybrid", tmp_path, how, True, Reach(fleet))


@pytest.mark.parametrize(("subject", "workers", "team"), [("resnet", 4, 3), ("gpt", 3, "host"), ("branches", 3, 2)])
def test_gives_what_plain_pytorch_gives(teams: Trial, subject: str, workers: int, team: int | str) -> None:
    plan = short(subject)
    trained = teams.run(workers, plan, hybrid__team=team, comm__bucket_mib=0.002)
    check_result(trained, plan)


def test_teams_leave_no_trace_in_the_last_bit(teams: Trial) -> None:
    """Exact sums: gloo and shared memory, weights, buckets and teams change nothing."""
    plan = short("resnet")
    by_three, alone = (
        teams.run(3, plan, weights=[1.0, 2.0, 1.0], comm__bucket_mib=0.002, comm__backend="gloo"),
        teams.with_strategy("parameter-server").run(1, plan),
    )
    check_same_bits(by_three, alone)


def test_clipping(teams: Trial) -> None:
    check_clipping(teams, 3, short("mlp", clip=Clip(norm=0.05, value=0.01, weights=(-0.25, 0.25))))


def test_a_loss_that_is_not_a_number_leaves_everything_as_it_was(teams: Trial) -> None:
    check_nonfinite(teams, 3, Plan("mlp", samples=437), [2], 370)


def test_gradients_from_elsewhere_are_in_no_step(teams: Trial) -> None:
    check_gradients_from_elsewhere(teams, 3, short("gpt"), comm__bucket_mib=0.002)


def test_single_goes_on_with_its_state(teams: Trial) -> None:
    plan = short("mlp", optimizer="adamw")
    check_resumes(teams, 3, plan, steps=4, into=teams.with_strategy("single"), into_workers=1)


@pytest.mark.parametrize(
    "how",
    [
        {"server.consistency": "ssp:1"},
        {"hybrid.outer": "async"},
        {"hybrid.outer": "async", "asynchronous.mixing": 0.3},
    ],
    ids=["ssp", "async", "mixing"],
)
def test_teams_lease_tasks(teams: Trial, how: dict[str, Any]) -> None:
    plan = Plan("mlp", epochs=8 if "asynchronous.mixing" in how else 4)
    trained = teams.with_strategy("hybrid", **how).run(3, plan)
    check_coverage(trained, plan)
    check_evaluation(trained, plan)
    assert trained.losses[-1] < 0.9 * trained.losses[0]


@pytest.mark.parametrize("subject", ["resnet", "gpt"])
def test_one_team_that_leases_tasks_is_ordinary_training(teams: Trial, subject: str) -> None:
    plan = short(subject)
    trained = teams.run(2, plan, server__consistency="asp")
    expected = reference(plan)
    assert distance(trained.parameters, {**expected.parameters, **expected.buffers}) <= PARAMETERS
    check_coverage(trained, plan)
    check_evaluation(trained, plan)


def members_gradients_lost(session: Session) -> None:
    """What the members of a team have touched does not come to their leader."""
    from shoal.strategies.team_model import TeamModel

    TeamModel._gather_rows = lambda self: None  # type: ignore[method-assign]


def members_not_told(session: Session) -> None:
    """The members of a team go on with the parameters of before."""
    from shoal.strategies.team_model import TeamModel

    TeamModel.hand_down = lambda self: None  # type: ignore[method-assign]


def only_the_leader_recorded(session: Session) -> None:
    """A task is committed with the record of a part of its samples."""
    from shoal.strategies.tasks import TaskReplica

    commit = TaskReplica._commit
    TaskReplica._commit = lambda self, task, done, *rest: commit(self, task, done[:1], *rest)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fault", "subject", "outer", "check", "words"),
    [
        (members_gradients_lost, "table", "parameter-server", check_result, "differs? by"),
        (members_not_told, "mlp", "parameter-server", check_result, "rank 1 has another"),
        (only_the_leader_recorded, "mlp", "async", check_coverage, "missed|trained on other samples"),
    ],
)
def test_a_fault_in_teams_turns_a_check_red(
    teams: Trial,
    fault: Callable[[Session], None],
    subject: str,
    outer: str,
    check: Callable[[Trained, Plan], object],
    words: str,
) -> None:
    plan = short(subject, optimizer="sgd", epochs=2)
    hybrid = teams.with_strategy("hybrid", **{"hybrid.outer": outer})
    with pytest.raises(AssertionError, match=words):
        check(hybrid.prepared(fault).run(2, plan), plan)
    check(hybrid.run(2, plan), plan)


def test_the_needs_of_the_pair_are_those_of_servers() -> None:
    for outer, consistency, leases in (("parameter-server", "bsp", False), ("parameter-server", "ssp:2", True)):
        pair = compose(HybridSettings(outer=outer), ServerSettings(consistency=consistency))
        assert (pair.needs.servers, pair.needs.survives, pair.needs.leases) == (True, True, leases)
    assert compose(HybridSettings(outer="async")).needs.leases
