"""The checks that mutations must turn red, by name: small plans, two workers."""

from __future__ import annotations

from collections.abc import Callable

from shoal.core.config import Clip
from shoal.testing.checks import (
    check_against_reference,
    check_commits,
    check_coverage,
    check_evaluation,
    check_gradients_from_elsewhere,
    check_nonfinite,
    check_resumes,
    check_same_bits_on_any_number,
)
from shoal.testing.plan import Plan
from shoal.testing.trial import Trial

WORKERS = 2


def small(subject: str, **changes: object) -> Plan:
    """Two epochs of 100, 100 and 3 samples."""
    return Plan(subject, samples=203, epochs=2, **changes)  # type: ignore[arg-type]


def _evaluation(trial: Trial) -> None:
    plan = small("mlp", test_samples=65)
    check_evaluation(trial.run(WORKERS, plan, eval_batch=16), plan)


def _coverage(trial: Trial) -> None:
    check_coverage(trial.run(WORKERS, small("resnet")), small("resnet"))


CHECKS: dict[str, Callable[[Trial], object]] = {
    "mlp": lambda trial: check_against_reference(trial, WORKERS, small("mlp")),
    "resnet": lambda trial: check_against_reference(trial, WORKERS, small("resnet")),
    "statistics over all": lambda trial: check_against_reference(
        trial, WORKERS, small("resnet", statistics="global"), weights=[2, 1]
    ),
    "statistics, one idle": lambda trial: check_against_reference(
        trial, WORKERS, small("resnet", statistics="global"), weights=[0, 1]
    ),
    "gpt": lambda trial: check_against_reference(trial, WORKERS, small("gpt")),
    "branches": lambda trial: check_against_reference(trial, WORKERS, small("branches")),
    # stated, because a run that finds means added up would fall back to equal grains
    "shares of 3 to 1": lambda trial: check_against_reference(
        trial, WORKERS, small("mlp"), weights=[3, 1], passes="merged"
    ),
    "clipping": lambda trial: check_against_reference(trial, WORKERS, small("mlp", clip=Clip(norm=0.05))),
    "schedule": lambda trial: check_against_reference(trial, WORKERS, small("mlp", schedule="steps")),
    "same bits, gpt": lambda trial: check_same_bits_on_any_number(trial, (1, 2, 3), small("gpt")),
    "same bits, resnet": lambda trial: check_same_bits_on_any_number(trial, (1, 4), small("resnet")),
    "gradients from elsewhere": lambda trial: check_gradients_from_elsewhere(trial, WORKERS, small("mlp")),
    "evaluation": _evaluation,
    "coverage": _coverage,
    "commits": lambda trial: check_commits(trial, WORKERS, small("mlp"), steps=1),
    "resuming": lambda trial: check_resumes(trial, WORKERS, small("resnet"), steps=4),
    "not a number": lambda trial: check_nonfinite(trial, WORKERS, Plan("resnet", samples=437), [1], position=370),
}
