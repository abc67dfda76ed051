"""Every law has a check that notices when it is broken: faults in our own code turn the right check red."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import faults
import pytest
from law_checks import CHECKS

from shoal.launch.session import Session
from shoal.testing.ranks import RankHarness
from shoal.testing.trial import Trial

pytestmark = [pytest.mark.mutation, pytest.mark.ranks]

DIFFERS = r"differs? by .* from plain PyTorch"

# a fault, the check that must notice it, and what the check must say: not any failure will do
REFUSED = "trained on other samples than those"  # the run notices it by itself, at once
SENSELESS = "makes no sense"  # by the program itself: such a position is not gone on from

MUTATIONS: list[tuple[Callable[[Session], None], str, str]] = [
    (faults.sample_dropped, "mlp", DIFFERS),
    (faults.sample_repeated, "mlp", DIFFERS),
    (faults.sample_repeated, "resnet", DIFFERS),
    (faults.grain_lost_between_workers, "coverage", "missed"),
    (faults.grain_lost_between_workers, "mlp", DIFFERS),
    (faults.order_of_each_worker_its_own, "coverage", REFUSED),
    (faults.order_the_same_in_every_epoch, "mlp", DIFFERS),
    (faults.gradient_counted_twice, "mlp", DIFFERS),
    (faults.gradient_counted_twice, "resnet", DIFFERS),
    (faults.gradients_from_elsewhere_counted, "gradients from elsewhere", DIFFERS),
    (faults.update_applied_twice, "mlp", DIFFERS),
    (faults.weight_of_one_worker_off, "mlp", DIFFERS),
    (faults.mean_of_means, "shares of 3 to 1", DIFFERS),
    (faults.mean_of_means, "gpt", DIFFERS),
    (faults.slice_not_summed, "mlp", r"rank 1 has "),
    (faults.sums_rounded_on_the_way, "same bits, gpt", "not equal"),
    (faults.sums_rounded_on_the_way, "same bits, resnet", "not equal"),
    (faults.unused_means_zero, "branches", DIFFERS),
    (faults.clipped_before_the_sum, "clipping", DIFFERS),
    (faults.learning_rate_times_workers, "mlp", "the learning rate of step 0 was"),
    (faults.schedule_one_step_late, "schedule", "the learning rate of step 1 was"),
    (faults.starting_weights_differ, "mlp", r"rank 1 has another|differs"),
    (faults.statistics_not_combined, "resnet", r"rank 1 has another .*running"),
    (faults.statistics_move_with_each_grain, "resnet", r"running_(mean|var) differs by"),
    (
        faults.statistics_of_each_worker_its_own,
        "statistics over all",
        r"other losses than|rank 1 has another|" + DIFFERS,
    ),
    (faults.gradient_through_statistics_not_combined, "statistics over all", DIFFERS),
    (faults.running_variance_biased, "statistics over all", r"running_var differs by"),
    (faults.values_counted_wrong, "statistics over all", DIFFERS),
    (faults.mean_of_workers_means, "statistics over all", DIFFERS),
    (faults.worker_without_samples_counted, "statistics, one idle", DIFFERS),
    (faults.running_statistics_moved_by_every_worker, "statistics over all", r"running_(mean|var) differs by"),
    (faults.dropout_seeded_by_worker, "gpt", DIFFERS),
    (faults.dropout_the_same_in_every_step, "gpt", DIFFERS),
    (faults.dropout_by_place_in_the_pass, "gpt", DIFFERS),
    (faults.dropout_by_grain, "gpt", DIFFERS),
    (faults.every_call_of_dropout_the_same, "gpt", DIFFERS),
    (faults.step_with_nan_applied, "not a number", "changed in the failed step"),
    (faults.nan_not_noticed, "not a number", "training went on|other losses"),
    (
        faults.statistics_not_rolled_back,
        "not a number",
        r"running_(mean|var) changed in the failed step|rank 1 has another",
    ),
    (faults.coverage_of_what_was_handed_out, "commits", "'once': 200"),
    (faults.evaluation_without_weights, "evaluation", "in one process"),
    (faults.evaluation_in_training_mode, "gpt", "in one process"),
    (faults.cursor_one_step_ahead, "resuming", "it went on at step 5, not 4"),
    (faults.cursor_one_batch_behind, "resuming", SENSELESS),
    (faults.optimizer_not_restored, "resuming", DIFFERS),
    (faults.coverage_not_restored, "resuming", "missed"),
]


@pytest.fixture
def trial(ranks: RankHarness, tmp_path: Path) -> Trial:
    # the checks must notice it by themselves: what the run would notice, it does not look at
    return Trial(ranks, "allreduce", tmp_path, {"comm.backend": "shm", "compare": "off"})


@pytest.mark.parametrize("check", CHECKS)
def test_the_check_is_green_without_a_fault(trial: Trial, check: str) -> None:
    CHECKS[check](trial)


@pytest.mark.parametrize(
    ("fault", "check", "words"), MUTATIONS, ids=[f"{fault.__name__}-{check}" for fault, check, _ in MUTATIONS]
)
def test_a_fault_turns_the_check_red(trial: Trial, fault: Callable[[Session], None], check: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words) as caught:
        CHECKS[check](trial.prepared(fault))
    if words not in (REFUSED, SENSELESS):
        assert "Traceback" not in str(caught.value), "the fault broke the program instead of the law"
