"""Codecs for pushes to servers: nearly the loss of none, fewer bytes, and residuals that follow the transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Reach, servers
from test_allreduce_codec import NEAR, RESIDUAL, check_residual_is_carried_on, loss

import shoal.strategies.push_choice
from shoal.comm.codecs.choose import CodecChoice
from shoal.comm.codecs.feedback import ErrorFeedback
from shoal.launch.session import Session
from shoal.strategies.push_coding import PushCoding
from shoal.testing.checks import check_coverage, check_nonfinite
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks]

Fault = Callable[[Session], None]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two: some tensors are cut."""
    with servers(tmp_path_factory.mktemp("servers")) as directory:
        yield directory


def trial_of(ranks: RankHarness, directory: Path, fleet: Path, strategy: str, **how: Any) -> Trial:
    return Trial(ranks, strategy, directory, how, True, Reach(fleet))


@pytest.fixture
def trial(ranks: RankHarness, tmp_path: Path, fleet: Path) -> Trial:
    return trial_of(ranks, tmp_path, fleet, "parameter-server")


def broken(trial: Trial, fault: Fault) -> Trial:
    reach = trial.prelude
    assert reach is not None

    def prelude(session: Session) -> None:
        reach(session)
        fault(session)

    return trial.prepared(prelude)


def test_every_codec_trains_nearly_as_none(trial: Trial) -> None:
    plan = Plan("mlp", samples=437, epochs=3)  # the last batch of an epoch has 37 samples
    specs = ("bf16", "fp16", "int8", "topk:0.1", "powersgd:2")
    none, *coded = trial.train(2, *(trial.order(plan, comm__codec=spec) for spec in ("none", *specs)))
    sent = {"none": none.summary["bytes_sent"]}
    for spec, trained in zip(specs, coded, strict=True):
        apart = abs(loss(trained) - loss(none)) / loss(none)
        assert apart <= NEAR[spec], f"{spec}: the loss is {loss(trained)}, without a codec {loss(none)}"
        assert trained.losses != none.losses, f"{spec} was not used"
        check_coverage(trained, plan)
        residuals = {name for name in trained.state if name.startswith(RESIDUAL)}
        assert residuals == {f"{RESIDUAL}{name}" for name, _ in plan.what.model().named_parameters()}
        sent[spec] = trained.summary["bytes_sent"]
    assert sent["topk:0.1"] < sent["int8"] < sent["bf16"] < sent["none"], sent
    assert sent["powersgd:2"] < sent["bf16"], sent


@pytest.mark.parametrize(("strategy", "consistency"), [("parameter-server", "ssp:2"), ("async", "asp")])
def test_tasks_travel_coded(ranks: RankHarness, tmp_path: Path, fleet: Path, strategy: str, consistency: str) -> None:
    plan, sent = Plan("mlp", samples=837, epochs=8), []
    how = {"server.consistency": consistency} if strategy == "parameter-server" else {}
    trial = trial_of(ranks, tmp_path, fleet, strategy, **how)
    for trained in trial.train(2, *(trial.order(plan, comm__codec=spec) for spec in ("none", "int8"))):
        check_coverage(trained, plan)
        assert trained.losses[-1] < 0.8 * trained.losses[0]
        sent.append(trained.summary["bytes_sent"])
    assert sent[1] < sent[0]


def test_elastic_averaging_travels_coded(ranks: RankHarness, tmp_path: Path, fleet: Path) -> None:
    plan = Plan("mlp", epochs=10)
    trial = trial_of(ranks, tmp_path, fleet, "async", **{"asynchronous.mixing": 0.3, "comm.codec": "topk:0.2"})
    trained = trial.run(2, plan)
    check_coverage(trained, plan)
    assert trained.losses[-1] < 0.9 * trained.losses[0]


def test_a_run_goes_on_with_what_codecs_had_left_out(trial: Trial) -> None:
    check_residual_is_carried_on(trial)


def check_nan_leaves_residuals(trial: Trial) -> None:
    coded = trial.with_strategy("parameter-server", **{"comm.codec": "topk:0.1"})
    check_nonfinite(coded, 2, Plan("mlp", samples=437), [1], position=370)


def test_a_loss_that_is_not_a_number_leaves_residuals_as_they_were(trial: Trial) -> None:
    check_nan_leaves_residuals(trial)


# ---- auto


def choose_int8(session: Session) -> None:
    chosen = CodecChoice("int8", "the test says so", {"none": 2.0, "int8": 1.0})
    shoal.strategies.push_choice.choose = lambda measured, workers: chosen  # type: ignore[attr-defined]


def test_auto_changes_over_after_the_first_steps(trial: Trial) -> None:
    plan = Plan("mlp", samples=437, epochs=3)
    orders = (trial.order(plan, comm__codec=spec) for spec in ("auto", "none"))
    auto, none = broken(trial, choose_int8).train(2, *orders)
    assert auto.losses[:6] == none.losses[:6]  # the loss of a step is that before its update
    assert auto.losses[7:] != none.losses[7:]
    assert abs(loss(auto) - loss(none)) <= 0.03 * loss(none)


# ---- the checks see what they should


def residual_of_a_failed_step_kept(session: Session) -> None:
    ErrorFeedback.discard = ErrorFeedback.commit  # type: ignore[method-assign]


def residual_loaded_by_everyone(session: Session) -> None:
    right = PushCoding.load_pieces

    def load_pieces(self: PushCoding, parameters: Any, pieces: Any) -> None:
        right(self, parameters, pieces or kept)

    kept: dict[str, Any] = {}
    from shoal.strategies.served import ServedReplica

    load = ServedReplica.load

    def load_and_keep(self: ServedReplica, state: Any) -> None:
        kept.update(state.pieces)
        load(self, state)

    PushCoding.load_pieces = load_pieces  # type: ignore[method-assign]
    ServedReplica.load = load_and_keep  # type: ignore[method-assign]


FAULTS: list[tuple[Fault, Callable[[Trial], None], str]] = [
    (residual_of_a_failed_step_kept, check_nan_leaves_residuals, "changed in the failed step"),
    (residual_loaded_by_everyone, check_residual_is_carried_on, "is not what it was when it was saved"),
]


@pytest.mark.mutation
@pytest.mark.parametrize(("fault", "check", "words"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
def test_a_fault_with_residuals_is_seen(trial: Trial, fault: Fault, check: Callable[[Trial], None], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check(broken(trial, fault))
