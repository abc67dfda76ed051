"""`allreduce` with codecs: nearly the loss of none, the same bits on every worker, residuals that follow the steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal.strategies.coding
from shoal.comm.codecs.choose import CodecChoice
from shoal.core.state import ShardedState
from shoal.launch.session import Session
from shoal.strategies.allreduce import AllReduceReplica
from shoal.strategies.buckets import GradientBuckets, residual_pieces
from shoal.strategies.coding import Coding
from shoal.strategies.replica import ModelReplica
from shoal.testing.checks import check_coverage, check_nonfinite
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.trial import Trained, Trial, same_bits

NEAR = {  # how far the loss on the test data may be from that without a codec, relative
    "bf16": 1e-3, "fp16": 1e-3, "int8": 3e-3, "int8:stochastic": 3e-3, "topk:0.1": 0.1, "powersgd:2": 0.1,
    "powersgd:4": 0.03,
}  # fmt: skip
RESIDUAL = "residual."


@pytest.fixture
def trial(ranks: RankHarness, tmp_path: Path) -> Trial:
    return Trial(ranks, "allreduce", tmp_path)


def loss(trained: Trained) -> float:
    return trained.evaluation["test_loss"]


@pytest.mark.contract
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("subject", "workers", "backend"), [("mlp", 2, "gloo"), ("resnet", 3, "gloo"), ("gpt", 2, "shm")]
)
def test_every_codec_trains_nearly_as_none(trial: Trial, subject: str, workers: int, backend: str) -> None:
    """That all workers hold the same bits is asserted where the trial puts them together."""
    plan = Plan(subject, samples=437, epochs=3)  # the last batch of an epoch has 37 samples
    how = {"comm__backend": backend}
    none, *coded = trial.train(workers, *(trial.order(plan, comm__codec=spec, **how) for spec in ("none", *NEAR)))
    for spec, trained in zip(NEAR, coded, strict=True):
        apart = abs(loss(trained) - loss(none)) / loss(none)
        assert apart <= NEAR[spec], f"{spec}: the loss is {loss(trained)}, without a codec {loss(none)}"
        assert trained.losses != none.losses, f"{spec} was not used"
        check_coverage(trained, plan)
        residuals = {name for name in trained.state if name.startswith(RESIDUAL)}
        assert residuals == {f"{RESIDUAL}{name}" for name, p in plan.what.model().named_parameters() if p.requires_grad}
    if workers == 2:
        sent = dict(zip(NEAR, (trained.summary["bytes_sent"] for trained in coded), strict=True))
        assert sent["int8"] < sent["bf16"] < none.summary["bytes_sent"]
        assert sent["topk:0.1"] < sent["int8"]


@pytest.mark.contract
@pytest.mark.ranks
def test_the_same_run_gives_the_same_bits(trial: Trial) -> None:
    plan = Plan("gpt", samples=203, epochs=2)
    orders = [trial.order(plan, comm__codec=spec) for spec in ("topk:0.1", "powersgd:2") for _ in range(2)]
    topk, again, power, power_again = trial.train(2, *orders)
    for first, second in ((topk, again), (power, power_again)):
        assert first.losses == second.losses
        assert all(same_bits(tensor, second.state[name]) for name, tensor in first.state.items())


# ---- checkpoints and steps that fail


def check_residual_is_carried_on(trial: Trial) -> None:
    """What all workers had left out when the checkpoint was written is what the first one goes on with."""
    plan, directory = Plan("mlp", samples=203), trial.directory / "carried-on"
    saving: dict[str, Any] = {"checkpoint__every": "100 epochs", "comm__codec": "topk:0.1"}
    (before,) = trial.train(2, trial.order(plan, run_dir=directory, until=4, **saving))
    at_once, then = (
        trial.order(plan, run_dir=directory, until=until, **{**saving, "checkpoint__every": "never"})
        for until in (0, None)
    )
    loaded, after = trial.train(2, at_once, then)
    assert loaded.ranks[0].first_step == after.ranks[0].first_step == 4
    residuals = {name: tensor for name, tensor in before.state.items() if name.startswith(RESIDUAL)}
    assert any(tensor.any() for tensor in residuals.values())
    for name, tensor in residuals.items():
        assert same_bits(tensor, loaded.state[name]), f"{name} is not what it was when it was saved"
    whole = trial.run(2, plan, comm__codec="topk:0.1")
    assert abs(loss(after) - loss(whole)) <= 0.1 * loss(whole)


@pytest.mark.contract
@pytest.mark.ranks
def test_a_run_goes_on_with_what_codecs_had_left_out(trial: Trial) -> None:
    check_residual_is_carried_on(trial)


@pytest.mark.contract
@pytest.mark.ranks
def test_single_goes_on_with_the_state_of_a_codec(trial: Trial) -> None:
    plan, directory = Plan("mlp", samples=203, epochs=2), trial.directory / "to-single"
    trial.train(2, trial.order(plan, run_dir=directory, until=4, checkpoint__every="100 epochs", comm__codec="int8"))
    single = trial.with_strategy("single")
    (after,) = single.train(1, single.order(plan, run_dir=directory, checkpoint__every="never"))
    assert after.ranks[0].first_step == 4
    check_coverage(after, plan)


def check_nan_leaves_residuals(trial: Trial) -> None:
    coded = trial.with_strategy("allreduce", **{"comm.codec": "powersgd:2"})
    check_nonfinite(coded, 2, Plan("resnet", samples=437), [1], position=370)


@pytest.mark.contract
@pytest.mark.ranks
def test_a_loss_that_is_not_a_number_leaves_residuals_as_they_were(trial: Trial) -> None:
    check_nan_leaves_residuals(trial)


def residual_of_a_failed_step_kept(session: Session) -> None:
    Coding.discard = Coding.commit  # type: ignore[method-assign]


def residual_loaded_by_everyone(session: Session) -> None:
    def load(self: AllReduceReplica, state: ShardedState) -> None:
        ModelReplica.load(self, state)
        self._buckets.load_residuals(residual_pieces(state.pieces))

    AllReduceReplica.load = load  # type: ignore[method-assign]


def residual_not_loaded(session: Session) -> None:
    GradientBuckets.load_residuals = lambda self, pieces: None  # type: ignore[method-assign]


FAULTS: list[tuple[Callable[[Session], None], Callable[[Trial], None], str]] = [
    (residual_of_a_failed_step_kept, check_nan_leaves_residuals, "changed in the failed step"),
    (residual_loaded_by_everyone, check_residual_is_carried_on, "is not what it was when it was saved"),
    (residual_not_loaded, check_residual_is_carried_on, "is not what it was when it was saved"),
]


@pytest.mark.mutation
@pytest.mark.ranks
@pytest.mark.parametrize(("fault", "check", "words"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
def test_a_fault_with_residuals_is_seen(
    trial: Trial, fault: Callable[[Session], None], check: Callable[[Trial], None], words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        check(trial.prepared(fault))


# ---- auto


def choose_powersgd(session: Session) -> None:
    """Whatever was measured: the choice is this one, and it must be carried out by all at the same step."""
    chosen = CodecChoice("powersgd:2", "the test says so", {"none": 2.0, "powersgd:2": 1.0})
    shoal.strategies.coding.choose = lambda measured, workers: chosen  # type: ignore[attr-defined]


@pytest.mark.contract
@pytest.mark.ranks
def test_auto_changes_over_after_the_first_steps(trial: Trial) -> None:
    plan = Plan("gpt", samples=437, epochs=2)
    forced = trial.prepared(choose_powersgd)
    auto, none, coded = forced.train(
        3, *(forced.order(plan, comm__codec=spec, comm__backend="gloo") for spec in ("auto", "none", "powersgd:2"))
    )
    assert auto.losses[:6] == none.losses[:6]  # the loss of a step is that before its update
    assert auto.losses[6:] != none.losses[6:]
    assert abs(loss(auto) - loss(none)) <= 0.1 * loss(none)
    steps = len(none.losses)
    by_step = {name: one.summary["bytes_sent"] / steps for name, one in (("none", none), ("coded", coded))}
    assert auto.summary["bytes_sent"] == pytest.approx(5 * by_step["none"] + (steps - 5) * by_step["coded"])
    check_coverage(auto, plan)


@pytest.mark.contract
@pytest.mark.ranks
def test_auto_trains_whatever_it_chooses(trial: Trial) -> None:
    plan = Plan("mlp", samples=437, epochs=2)
    auto, none = trial.train(2, *(trial.order(plan, comm__codec=spec) for spec in ("auto", "none")))
    assert abs(loss(auto) - loss(none)) <= 0.03 * loss(none)


# ---- in two levels


@pytest.mark.contract
@pytest.mark.ranks
def test_in_two_levels_only_leaders_code(trial: Trial) -> None:
    plan = Plan("mlp", samples=437, epochs=3)
    two = trial.with_strategy("hybrid", **{"hybrid.outer": "allreduce", "hybrid.team": 2, "comm.backend": "shm"})
    specs = ("int8", "topk:0.1", "powersgd:2")
    none, *coded = two.train(4, *(two.order(plan, comm__codec=spec) for spec in ("none", *specs)))
    for spec, trained in zip(specs, coded, strict=True):
        apart = abs(loss(trained) - loss(none)) / loss(none)
        assert apart <= NEAR[spec], f"{spec}: the loss is {loss(trained)}, without a codec {loss(none)}"
        assert trained.losses != none.losses, f"{spec} was not used"
        assert trained.summary["bytes_sent"] < none.summary["bytes_sent"]
        check_coverage(trained, plan)
