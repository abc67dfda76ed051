"""What every strategy promises, as tests. A strategy's test class inherits them and says which strategy it is::

    class TestMine(StrategyContract):
        strategy = Mine
        worker_counts = (1, 2, 3, 4)

They need the fixture `ranks` (a `RankHarness`) and run on all three models: a ResNet with batch normalisation, a GPT
with dropout, tied weights and a masked loss, and a plain MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shoal.core.config import Clip
from shoal.core.grains import shares
from shoal.testing.checks import (
    check_against_reference,
    check_clipping,
    check_commits,
    check_coverage,
    check_evaluation,
    check_given_back,
    check_gradients_from_elsewhere,
    check_near_in_bfloat16,
    check_nonfinite,
    check_refuses_sparse,
    check_repeatable,
    check_result,
    check_resumes,
    check_same_bits_on_any_number,
)
from shoal.testing.plan import RULES, Plan
from shoal.testing.ranks import RankHarness
from shoal.testing.subjects import MAIN
from shoal.testing.training import StrategyChoice
from shoal.testing.trial import Trial

UNEVEN: dict[int, tuple[tuple[float, ...], ...]] = {
    1: (),
    2: ((3, 1), (0, 1)),
    3: ((1, 2, 1), (1, 0, 2)),
    4: ((5, 1, 0, 1),),
}
CLIPS = {
    "norm": Clip(norm=0.05),
    "value": Clip(value=0.004),
    "weights": Clip(weights=(-0.2, 0.2)),
    "all": Clip(norm=0.05, value=0.01, weights=(-0.25, 0.25)),
}


def short(subject: str, **changes: Any) -> Plan:
    """Five epochs of three batches: 100, 100 and 3, which is fewer than four workers."""
    return Plan(subject, samples=203, **changes)


class StrategyContract:
    """Give `strategy`: a name, or a function without arguments that makes one."""

    strategy: ClassVar[StrategyChoice]
    worker_counts: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    subjects: ClassVar[tuple[str, ...]] = MAIN
    schedules: ClassVar[tuple[str, ...]] = tuple(sorted(set(RULES) - {"constant"}))
    how: ClassVar[Mapping[str, Any]] = {}  # settings for every run, such as the backend
    replicated: ClassVar[bool] = True  # every worker has the whole model after a step
    divides_batches: ClassVar[bool] = True  # workers compute the shares that the weights give them
    exact_sums: ClassVar[bool] = True  # the same bits on any number of workers, where grains run one by one
    in_turn: ClassVar[bool] = False  # each law on one model and one number of workers, which take turns: it takes less

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test on the numbers of workers and on the models that it asks for."""
        counts, subjects, name = self.worker_counts, self.subjects, metafunc.function.__name__
        if self.in_turn and name in vars(StrategyContract):
            turn = [law for law in vars(StrategyContract) if law.startswith("test_")].index(name)
            counts, subjects = (counts[turn % len(counts)],), (subjects[turn % len(subjects)],)
        if "workers" in metafunc.fixturenames:
            metafunc.parametrize("workers", counts)
        if "subject" in metafunc.fixturenames:
            metafunc.parametrize("subject", subjects)
        if "schedule" in metafunc.fixturenames:
            metafunc.parametrize("schedule", self.schedules)

    @pytest.fixture
    def trial(self, ranks: RankHarness, tmp_path: Path) -> Trial:
        """The strategy, ready to train."""
        kind = type(self)
        strategy = kind.__dict__.get("strategy", kind.strategy)
        return Trial(ranks, strategy, tmp_path, self.how, self.replicated)

    @property
    def several(self) -> int:
        """A number of workers by which nothing divides, if the strategy has it."""
        return 3 if 3 in self.worker_counts else self.worker_counts[-1]

    # ---- law 1: the number of workers never changes the mathematics

    def test_gives_what_plain_pytorch_gives(self, trial: Trial, subject: str, workers: int) -> None:
        check_against_reference(trial, workers, Plan(subject))

    def test_gives_the_same_bits_twice(self, trial: Trial, subject: str, workers: int) -> None:
        check_repeatable(trial, workers, short(subject))

    @pytest.mark.parametrize("model", ["resnet", "gpt"])
    def test_gives_the_same_bits_on_any_number_of_workers(self, trial: Trial, model: str) -> None:
        if not self.exact_sums or len(self.worker_counts) == 1:
            pytest.skip("this strategy promises equality up to rounding")
        check_same_bits_on_any_number(trial, self.worker_counts, short(model))

    @pytest.mark.parametrize("model", ["resnet", "gpt"])
    def test_sums_in_single_precision_differ_by_rounding_only(self, trial: Trial, model: str) -> None:
        check_against_reference(trial, self.several, short(model), sums="float32", passes="grain")

    def test_last_batch_smaller_than_the_number_of_workers(self, trial: Trial, subject: str, workers: int) -> None:
        check_against_reference(trial, workers, short(subject))

    @pytest.mark.parametrize("passes", ["grain", "merged"])
    def test_what_is_drawn_belongs_to_samples_not_to_passes(self, trial: Trial, passes: str) -> None:
        check_against_reference(trial, self.several, short("gpt"), passes=passes, accumulate=2)

    def test_uneven_shares(self, trial: Trial, subject: str, workers: int) -> None:
        plan = short(subject)
        orders = [trial.order(plan, weights=list(weights)) for weights in UNEVEN[workers]]
        if not orders:
            pytest.skip("one worker has everything")
        for trained, weights in zip(trial.train(workers, *orders), UNEVEN[workers], strict=True):
            check_result(trained, plan)
            if self.divides_batches:
                for record, weight in zip(trained.ranks, weights, strict=True):
                    assert (record.passed > 0) == (weight > 0)

    def test_accumulation(self, trial: Trial, subject: str) -> None:
        plan = short(subject)
        for trained in trial.train(self.several, *(trial.order(plan, accumulate=n) for n in (2, 3, 50))):
            check_result(trained, plan)

    @pytest.mark.parametrize("kind", CLIPS)
    def test_clipping(self, trial: Trial, subject: str, kind: str) -> None:
        check_clipping(trial, self.several, short(subject, clip=CLIPS[kind]))

    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    def test_optimizers(self, trial: Trial, subject: str, optimizer: str) -> None:
        check_against_reference(trial, self.several, short(subject, optimizer=optimizer))

    def test_schedules(self, trial: Trial, schedule: str) -> None:
        check_against_reference(trial, self.several, short("mlp", schedule=schedule, epochs=8))

    def test_masked_loss_as_a_module(self, trial: Trial, workers: int) -> None:
        check_against_reference(trial, workers, short("gpt-module"))

    @pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
    def test_unused_shared_frozen_and_sometimes_used_parameters(
        self, trial: Trial, workers: int, optimizer: str
    ) -> None:
        check_against_reference(trial, workers, short("branches", optimizer=optimizer))

    def test_gradients_from_elsewhere_are_in_no_step(self, trial: Trial, subject: str) -> None:
        check_gradients_from_elsewhere(trial, self.several, short(subject))

    def test_sparse_gradients_are_refused(self, trial: Trial) -> None:
        check_refuses_sparse(trial, self.several)

    def test_bfloat16(self, trial: Trial, subject: str) -> None:
        check_near_in_bfloat16(trial, self.several, short(subject, epochs=2))

    # ---- evaluation

    def test_evaluation_is_exact_for_any_size(self, trial: Trial, subject: str, workers: int) -> None:
        plans = [short(subject, epochs=1, test_samples=samples) for samples in (2, 65, 301)]
        trained = trial.train(workers, *(trial.order(plan, eval_batch=32) for plan in plans))
        for one, plan in zip(trained, plans, strict=True):
            check_evaluation(one, plan)
            check_coverage(one, plan)

    # ---- law 2: a step is a transaction

    def test_what_is_handed_out_is_not_yet_committed(self, trial: Trial, workers: int) -> None:
        check_commits(trial, workers, short("mlp"), steps=1)

    def test_a_loss_that_is_not_a_number_leaves_everything_as_it_was(self, trial: Trial, workers: int) -> None:
        for model in ("mlp", "resnet"):
            plan = Plan(model, samples=437)
            position = 370  # of the first epoch's order: in step 3, 70th of its samples
            grain = plan.grain or 1
            owners = shares(100 // grain, [1.0] * workers)
            named = [rank for rank, grains in enumerate(owners) if 70 // grain in grains]
            check_nonfinite(trial, workers, plan, named if self.divides_batches else range(workers), position)

    def test_a_run_that_goes_on_is_the_run_that_was_never_interrupted(self, trial: Trial, subject: str) -> None:
        check_resumes(trial, self.several, short(subject), steps=4)

    def test_single_goes_on_with_its_state(self, trial: Trial, subject: str) -> None:
        single = trial.with_strategy("single")
        check_resumes(trial, self.several, short(subject, optimizer="adamw"), steps=4, into=single, into_workers=1)

    def test_goes_on_with_the_state_of_single(self, trial: Trial, subject: str) -> None:
        single = trial.with_strategy("single")
        check_resumes(single, 1, short(subject), steps=4, into=trial, into_workers=self.several)

    # ---- the user's model is the user's

    def test_the_model_is_given_back(self, trial: Trial, subject: str) -> None:
        check_given_back(trial, self.several, short(subject, epochs=1))
