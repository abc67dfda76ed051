"""Incremental training and hybrids on real ranks: where they must give what synchronous training gives, they do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal.strategies.coding
import shoal.strategies.incremental_replica
from shoal.comm.codecs.choose import CodecChoice
from shoal.core.config import HybridSettings
from shoal.launch.session import Session
from shoal.strategies.base import StepResult, Work
from shoal.strategies.hybrid import compose
from shoal.strategies.incremental_replica import IncrementalReplica
from shoal.strategies.pacing import Pace, next_pace
from shoal.strategies.single import Single
from shoal.testing.checks import (
    PARAMETERS,
    check_coverage,
    check_evaluation,
    check_gradients_from_elsewhere,
    check_result,
    distance,
)
from shoal.testing.contract import short
from shoal.testing.plan import Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.reference import reference
from shoal.testing.trial import Trained, Trial

pytestmark = [pytest.mark.contract, pytest.mark.ranks]


@pytest.fixture
def trial(ranks: RankHarness, tmp_path: Path) -> Trial:
    return Trial(ranks, "incremental", tmp_path, {"incremental.h": 2})


def hybrid(trial: Trial, **settings: Any) -> Trial:
    return trial.with_strategy("hybrid", **{f"hybrid.{name}": value for name, value in settings.items()})


def check_parameters(trained: Trained, plan: Plan) -> None:
    expected = reference(plan)
    difference = distance(trained.parameters, {**expected.parameters, **expected.buffers})
    assert difference <= PARAMETERS, f"{plan}: the parameters differ by {difference:.1e} from plain PyTorch"
    check_coverage(trained, plan)
    check_evaluation(trained, plan)


@pytest.mark.parametrize(("subject", "optimizer"), [("mlp", "adamw"), ("resnet", "momentum"), ("gpt", "adamw")])
def test_alone_it_is_ordinary_training(trial: Trial, subject: str, optimizer: str) -> None:
    plan = short(subject, optimizer=optimizer)
    for trained in trial.train(1, *(trial.order(plan, incremental__h=h) for h in (2, "auto"))):
        check_parameters(trained, plan)


@pytest.mark.parametrize(("subject", "workers"), [("mlp", 2), ("mlp", 4), ("resnet", 3)])
def test_one_plain_step_a_round_is_synchronous_training(trial: Trial, subject: str, workers: int) -> None:
    """The average of single steps of plain SGD, weighted by samples, is the step of the whole batch."""
    plan = short(subject, optimizer="sgd")
    check_parameters(trial.run(workers, plan, incremental__h=1, incremental__rho=1.0), plan)


@pytest.mark.parametrize("subject", ["resnet", "gpt"])
def test_with_fixed_parts_the_same_bits_come_twice(trial: Trial, subject: str) -> None:
    plan = short(subject)
    first, second = trial.train(3, *(trial.order(plan, incremental__rho=1.0) for _ in range(2)))
    assert first.summary["params_sha256"] == second.summary["params_sha256"]
    check_coverage(first, plan)


@pytest.mark.parametrize(
    "how", [{"rho": 0.01, "h": 3}, {"rho": 0.5, "h": "auto"}, {"outer": "nesterov", "h": "growing"}]
)
def test_leased_tasks_cover_every_sample_once_and_train(trial: Trial, how: dict[str, Any]) -> None:
    plan = Plan("mlp", epochs=4)
    trained = trial.run(3, plan, **{f"incremental__{name}": value for name, value in how.items()})
    check_coverage(trained, plan)
    check_evaluation(trained, plan)
    assert trained.losses[-1] < 0.8 * trained.losses[0]


def lengths(trained: Trained, plan: Plan) -> list[int]:
    """How many batches each round covered, by the samples that all ranks committed in it."""
    by_round = zip(*(record.committed for record in trained.ranks), strict=True)
    return [-(-sum(map(len, parts)) // plan.global_batch) for parts in by_round]


@pytest.mark.parametrize("workers", [1, 2])
def test_growing_rounds_double_until_an_epoch_cuts_one_off(trial: Trial, workers: int) -> None:
    plan = Plan("mlp", samples=2050, epochs=2, global_batch=50)
    trained = trial.run(workers, plan, incremental__h="growing")
    check_coverage(trained, plan)
    assert lengths(trained, plan) == [1, 2, 4, 8, 16, 10, 41]


class SendingCosts:
    """As if an average took as long as so many local steps, so that nothing depends on how busy the machine is."""

    def __init__(self, steps: float) -> None:
        self._steps = steps

    def __call__(self, session: Session) -> None:
        shoal.strategies.incremental_replica.next_pace = self._next  # type: ignore[attr-defined]

    def _next(self, h: int | str, last: Pace, steps: int, computing_s: float, sending_s: float) -> Pace:
        assert computing_s > 0
        assert sending_s > 0
        return next_pace(h, last, steps, float(steps), self._steps)


@pytest.mark.parametrize(
    ("sending", "expected"),
    [
        (1.5, [2, 2, 8, 14, 14, 1, 14, 14, 13]),  # in a tenth of the time
        (100.0, [2, 2, 8, 29, 41]),  # at most four times as long as before
        (0.001, [2, 2, *[1] * 37, *[1] * 41]),
    ],
    ids=["dear", "very dear", "cheap"],
)
def test_auto_finds_the_length_of_rounds_from_what_sending_costs(
    trial: Trial, sending: float, expected: list[int]
) -> None:
    plan = Plan("mlp", samples=2050, epochs=2, global_batch=50)
    trained = trial.prepared(SendingCosts(sending)).run(2, plan, incremental__h="auto")
    check_coverage(trained, plan)
    assert lengths(trained, plan) == expected


def slow_down_the_last(session: Session) -> None:
    """Its local steps take much longer than those of the others."""
    if session.world.rank == 2:
        step = Single.step

        def slowed(self: Single, replica: Any, work: Work) -> StepResult:
            time.sleep(0.04)
            return step(self, replica, work)

        Single.step = slowed  # type: ignore[method-assign]


def test_a_slow_worker_takes_fewer_tasks(trial: Trial) -> None:
    plan = Plan("mlp", epochs=1, samples=3000)
    trained = trial.prepared(slow_down_the_last).run(3, plan, incremental__h=15, incremental__rho=0.01)
    check_coverage(trained, plan)
    quick, other, slow = (sum(map(len, record.committed)) for record in trained.ranks)
    assert slow < 0.6 * min(quick, other), (quick, other, slow)


@pytest.mark.parametrize("codec", ["bf16", "int8", "topk:0.1", "powersgd:2"])
def test_differences_can_be_coded(trial: Trial, codec: str) -> None:
    plan = Plan("mlp", epochs=4)
    exact, coded = trial.train(
        2, *(trial.order(plan, comm__codec=one, incremental__rho=1.0) for one in ("none", codec))
    )
    check_coverage(coded, plan)
    assert coded.summary["bytes_sent"] < 0.7 * exact.summary["bytes_sent"]
    assert coded.summary["final"]["test_loss"] < 1.3 * exact.summary["final"]["test_loss"]


def choose_int8(session: Session) -> None:
    """Whatever was measured: the choice is this one, and it must be carried out by all at the same average."""
    chosen = CodecChoice("int8", "the test says so", {"none": 2.0, "int8": 1.0})
    shoal.strategies.coding.choose = lambda measured, workers: chosen  # type: ignore[attr-defined]


@pytest.mark.parametrize("team", [1, 2])
def test_auto_chooses_before_the_first_average(trial: Trial, team: int) -> None:
    plan, forced = Plan("mlp", epochs=2), hybrid(trial, team=team).prepared(choose_int8)
    auto, coded = forced.train(
        4, *(forced.order(plan, comm__codec=one, incremental__h=4, incremental__rho=1.0) for one in ("auto", "int8"))
    )
    assert auto.losses == coded.losses
    assert auto.summary["bytes_sent"] == coded.summary["bytes_sent"]
    assert auto.summary["params_sha256"] == coded.summary["params_sha256"]
    check_coverage(auto, plan)


def test_auto_trains_whatever_it_chooses(trial: Trial) -> None:
    plan = Plan("mlp", epochs=2)
    auto, none = trial.train(2, *(trial.order(plan, comm__codec=one, incremental__h=4) for one in ("auto", "none")))
    check_coverage(auto, plan)
    assert auto.summary["final"]["test_loss"] < 1.3 * none.summary["final"]["test_loss"]


def test_what_a_codec_left_out_is_sent_by_auto_after_a_checkpoint(trial: Trial, tmp_path: Path) -> None:
    """The codec is chosen anew when the run goes on: what was left out before is not lost with the choice."""
    plan, where, forced = short("mlp", optimizer="sgd"), tmp_path / "run", trial.prepared(choose_int8)
    how = {"incremental__h": 1, "incremental__rho": 1.0, "checkpoint__every": "1 epoch"}
    forced.train(2, forced.order(plan, run_dir=where, until=6, comm__codec="topk:0.05", **how))
    (auto,) = forced.train(2, forced.order(plan, run_dir=where, comm__codec="auto", **how))
    assert auto.summary["coverage"]["once"] == plan.samples * plan.epochs
    assert distance(auto.parameters, reference(plan).parameters) <= 4e-3  # 9e-3 where it is lost


def test_it_goes_on_from_a_checkpoint(trial: Trial, tmp_path: Path) -> None:
    plan = short("mlp", optimizer="sgd")
    how = {"incremental__h": 1, "incremental__rho": 1.0, "checkpoint__every": "1 epoch"}
    where = tmp_path / "run"
    trial.train(3, trial.order(plan, run_dir=where, until=7, **how))
    (trained,) = trial.train(2, trial.order(plan, run_dir=where, **how))
    expected = reference(plan)
    assert distance(trained.parameters, expected.parameters) <= PARAMETERS
    assert trained.summary["coverage"]["once"] == plan.samples * plan.epochs


def test_another_strategy_goes_on_with_its_checkpoint(trial: Trial, tmp_path: Path) -> None:
    plan, where = short("mlp", optimizer="sgd"), tmp_path / "run"
    every = {"checkpoint__every": "1 epoch"}
    trial.train(
        2,
        trial.order(
            plan, run_dir=where, until=6, incremental__h=1, incremental__rho=1.0, incremental__outer="nesterov",
            incremental__outer_lr=1.0, incremental__outer_momentum=0.0, comm__codec="bf16", **every,
        ),
    )  # fmt: skip
    other = trial.with_strategy("allreduce")
    (trained,) = other.train(2, other.order(plan, run_dir=where, **every))
    assert distance(trained.parameters, reference(plan).parameters) <= 1e-2


def test_a_loss_that_is_not_finite_leaves_the_common_weights(trial: Trial) -> None:
    plan = Plan("mlp", samples=203, epochs=1)
    (trained,) = trial.train(2, trial.order(plan, poison=150, incremental__h=3, until=1))
    failures = [record.failure for record in trained.ranks]
    assert all(failure is not None for failure in failures)
    for failure in failures:
        assert failure is not None
        for name, piece in failure.before.items():
            if name.startswith("model."):
                assert piece.tensor.equal(failure.after[name].tensor), f"{name} has changed"


@pytest.mark.parametrize(("subject", "team"), [("mlp", 3), ("resnet", 2), ("gpt", 2), ("gpt", "host")])
def test_hierarchical_all_reduce_is_synchronous_training(trial: Trial, subject: str, team: int | str) -> None:
    plan = short(subject)
    check_result(hybrid(trial, outer="allreduce", team=team).run(4, plan), plan)


@pytest.mark.parametrize(("subject", "workers", "team"), [("mlp", 4, 2), ("resnet", 3, 2), ("mlp", 2, "host")])
def test_teams_that_average_single_steps_are_synchronous(
    trial: Trial, subject: str, workers: int, team: int | str
) -> None:
    plan = short(subject, optimizer="sgd")
    check_parameters(hybrid(trial, team=team).run(workers, plan, incremental__h=1, incremental__rho=1.0), plan)


@pytest.mark.parametrize(
    ("plan", "how"),
    [
        (short("resnet"), {"loader__processes": 1}),
        (short("gpt"), {"grain": 50}),  # one grain for a team of two, from the first step on
        (Plan("mlp", samples=201, epochs=2), {"loader__processes": 1, "accumulate": 2}),  # a last batch of one sample
        (Plan("mlp", samples=3, epochs=3, global_batch=3), {}),
    ],
    ids=["batch normalisation", "dropout", "one sample at the end", "fewer samples than workers"],
)
def test_who_has_no_grain_of_a_task_takes_part_in_it(trial: Trial, plan: Plan, how: dict[str, Any]) -> None:
    trained = hybrid(trial, team=2).run(4, plan, incremental__h=3, incremental__rho=0.1, **how)
    check_coverage(trained, plan)
    check_evaluation(trained, plan)


def stays_out_without_a_grain(session: Session) -> None:
    right = IncrementalReplica._local_step

    def local_step(self: IncrementalReplica, number: int, unit: Any, batches: Any, rates: Any, passes: Any) -> None:
        if passes:
            right(self, number, unit, batches, rates, passes)

    IncrementalReplica._local_step = local_step  # type: ignore[method-assign]


@pytest.mark.mutation
def test_a_member_that_stays_out_of_a_task_is_waited_for_in_vain(trial: Trial) -> None:
    """The fault that the test above must find, and that nobody waits for ever because of it."""
    plan = Plan("mlp", samples=3, epochs=3, global_batch=3)
    with pytest.raises(AssertionError, match="CollectiveTimeout"):
        hybrid(trial, team=2).prepared(stays_out_without_a_grain).run(4, plan, incremental__h=3, comm__timeout_s=2.0)


class Reader(nn.Module):
    """An LSTM with dropout between its layers: grains run one by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.LSTM(5, 8, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x)[0][:, -1])
        return logits


def read(session: Session, directory: str) -> dict[str, Any]:
    torch.manual_seed(2)
    trainer = shoal.Trainer(
        Reader(), nn.CrossEntropyLoss(), lambda params: torch.optim.SGD(params, lr=0.1),
        (torch.randn(97, 6, 5), torch.randint(3, (97,))), global_batch=32, epochs=2, strategy="hybrid", grain=16,
        run_dir=directory, **{"hybrid.team": 2, "incremental.h": 2, "comm.timeout_s": 30.0},
    )  # fmt: skip
    return trainer.fit().summary


def test_an_lstm_in_teams(ranks: RankHarness, tmp_path: Path) -> None:
    for summary in ranks.run(4, read, str(tmp_path / "run")):
        assert summary["coverage"] == {"expected": 194, "once": 194, "missed": 0, "repeated": 0}


@pytest.mark.parametrize("team", [1, 2])
def test_gradients_from_elsewhere_are_in_no_step(trial: Trial, team: int) -> None:
    plan = short("mlp", optimizer="sgd")
    how = {"incremental__h": 1, "incremental__rho": 1.0}
    check_gradients_from_elsewhere(hybrid(trial, team=team), 4 if team > 1 else 2, plan, **how)


def test_teams_lease_tasks(trial: Trial) -> None:
    plan = Plan("mlp", epochs=4)
    trained = hybrid(trial, team=2).run(4, plan, incremental__h=4, incremental__rho=0.2, comm__codec="int8")
    check_coverage(trained, plan)
    assert trained.losses[-1] < 0.8 * trained.losses[0]


def test_a_pair_that_makes_no_sense_is_refused() -> None:
    from shoal.core.errors import ConfigError

    for wrong in ({"inner": "incremental"}, {"outer": "single"}):
        with pytest.raises(ConfigError, match=r"hybrid\.(inner|outer)="):
            compose(HybridSettings.model_validate(wrong))
