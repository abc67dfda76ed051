"""The laws as checks: each trains on real ranks and raises AssertionError where the law does not hold.

Contract tests call them on strategies as they are, mutation tests on strategies that were broken on purpose.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.config import Clip
from shoal.core.cursor import Batches, Cursor
from shoal.core.order import epoch_order
from shoal.launch.session import Session
from shoal.strategies.base import Work
from shoal.testing.plan import RULES, Plan
from shoal.testing.reference import evaluate, reference
from shoal.testing.training import step_in_plain_pytorch
from shoal.testing.trial import Trained, Trial, same_bits
from shoal.train.run import Run

LOSSES = 1e-5  # relative, of each step
PARAMETERS = 1e-5  # relative, as a norm over all of them
EVALUATION = 1e-6  # relative


def distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The norm of the difference relative to that of `expected`, over all its tensors together."""
    difference = sum(float((found[name].double() - t.double()).square().sum()) for name, t in expected.items())
    size = sum(float(tensor.double().square().sum()) for tensor in expected.values())
    return math.sqrt(difference / size) if size else math.sqrt(difference)


def largest_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference of two sequences of the same length."""
    assert len(found) == len(expected), f"{len(found)} values where {len(expected)} were expected"
    return max((abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, expected, strict=True)), default=0.0)


def check_result(trained: Trained, plan: Plan) -> None:
    """Losses, learning rates, parameters, running statistics, coverage and evaluation are those of the reference."""
    check_training(trained, plan)
    check_evaluation(trained, plan)


def check_training(trained: Trained, plan: Plan) -> None:
    """The same without evaluation."""
    expected = reference(plan)
    _check_rates(trained, plan)
    difference = largest_difference(trained.losses, expected.losses)
    assert difference <= LOSSES, f"{plan}: a loss differs by {difference:.1e} from plain PyTorch"
    difference = distance(trained.parameters, expected.parameters)
    assert difference <= PARAMETERS, f"{plan}: the parameters differ by {difference:.1e} from plain PyTorch"
    for name, buffer in expected.buffers.items():
        difference = distance({name: trained.parameters[name]}, {name: buffer})
        assert difference <= PARAMETERS, f"{plan}: {name} differs by {difference:.1e} from plain PyTorch"
    check_coverage(trained, plan)


def _check_rates(trained: Trained, plan: Plan) -> None:
    """Learning rates are what the schedule says, whatever the number of workers."""
    batches = Batches(plan.samples, plan.global_batch, 1)
    (parameter,) = (torch.nn.Parameter(torch.zeros(1)),)
    initial = plan.make_optimizer([parameter]).param_groups[0]["lr"]
    cursor = Cursor()
    for step, rates in enumerate(trained.rates):
        epochs = cursor.epoch + cursor.batch / batches.per_epoch
        expected = initial * RULES[plan.schedule].factor(cursor.step, cursor.samples, epochs)
        assert math.isclose(rates[0], expected, rel_tol=1e-9, abs_tol=1e-12), (
            f"the learning rate of step {step} was {rates[0]}, not {expected}"
        )
        cursor = batches.after(cursor)


def check_evaluation(trained: Trained, plan: Plan) -> None:
    """Loss and metrics on the test data are those of the trained parameters, computed at once in one process."""
    model = plan.what.model()
    with torch.no_grad():
        own = dict((*model.named_parameters(), *model.named_buffers()))
        for name, tensor in trained.parameters.items():
            own[name].copy_(tensor)
    expected = evaluate(model, plan)
    assert trained.evaluation.keys() == expected.keys(), f"it evaluates {list(trained.evaluation)}"
    for name, value in expected.items():
        found = trained.evaluation[name]
        assert abs(found - value) <= EVALUATION * abs(value), f"{name} is {found}, in one process {value}"


def check_coverage(trained: Trained, plan: Plan) -> None:
    """Every sample shaped the model once an epoch: by the run's record and by what the strategy reported."""
    _check_totals(trained, plan.samples * plan.epochs)
    if trained.ranks[0].first_step == 0:
        for epoch, counts in trained.seen(plan.samples).items():
            assert (counts == 1).all(), f"in epoch {epoch} {int((counts != 1).sum())} samples were not seen once"


def _check_totals(trained: Trained, samples: int) -> None:
    expected = {"expected": samples, "once": samples, "missed": 0, "repeated": 0}
    found = trained.summary["coverage"]
    assert found == expected, f"the coverage is {found}, not {expected}"
    assert trained.summary["samples"] == samples, f"{trained.summary['samples']} samples were counted, not {samples}"


def check_against_reference(trial: Trial, workers: int, plan: Plan, **how: Any) -> Trained:
    """Training on `workers` ranks gives what plain PyTorch gives in one process."""
    trained = trial.run(workers, plan, **how)
    check_result(trained, plan)
    return trained


def check_clipping(trial: Trial, workers: int, plan: Plan, **how: Any) -> None:
    """Clipping acts on the gradient of the global batch, and it really clips in this plan."""
    check_against_reference(trial, workers, plan, **how)
    free = reference(replace(plan, clip=Clip()))
    assert distance(reference(plan).parameters, free.parameters) > 100 * PARAMETERS, f"{plan.clip} clips nothing"


def check_same_bits(first: Trained, second: Trained) -> None:
    """Two runs are equal to the last bit: losses, parameters, running statistics, optimizer."""
    assert first.losses == second.losses, "the losses are not equal"
    assert first.state.keys() == second.state.keys(), "the states hold other tensors"
    for name, tensor in first.state.items():
        assert same_bits(tensor, second.state[name]), f"{name} is not equal"


def check_repeatable(trial: Trial, workers: int, plan: Plan, **how: Any) -> None:
    """The same run twice gives the same bits."""
    check_same_bits(trial.run(workers, plan, **how), trial.run(workers, plan, **how))


def check_same_bits_on_any_number(trial: Trial, worker_counts: Sequence[int], plan: Plan) -> None:
    """Where grains run one by one, the number of workers leaves no trace in the last bit. Shares are uneven, so that
    each number of workers adds grains up in groups of its own: equal shares of a few grains may be added in the very
    order of one worker."""
    weights = [1.0, 2.0, 1.0, 1.0]
    first, *others = [trial.run(n, plan, weights=weights[:n], passes="grain") for n in worker_counts]
    for other in others:
        check_same_bits(first, other)


def check_commits(trial: Trial, workers: int, plan: Plan, steps: int) -> None:
    """A batch that was handed out and not trained on is nowhere in the record of samples."""
    (trained,) = trial.train(workers, trial.order(plan, until=steps, checkpoint__every="2 epochs"))
    _check_totals(trained, steps * plan.global_batch)


def check_resumes(
    trial: Trial, workers: int, plan: Plan, steps: int, *, into: Trial | None = None, into_workers: int | None = None
) -> None:
    """A run that ends after `steps` and goes on is the run that was never interrupted: bit by bit where the same
    strategy goes on with as many workers, within rounding where another one does."""
    directory = trial.directory / f"resumed-{plan.subject}-{workers}-{steps}-{into_workers}-{into is None}"
    saving: dict[str, Any] = {"checkpoint__every": "100 epochs"}  # at the end of each part only
    (before,) = trial.train(workers, trial.order(plan, run_dir=directory, until=steps, **saving))
    then = into if into is not None else trial
    count = into_workers if into_workers is not None else workers
    (after,) = then.train(count, then.order(plan, run_dir=directory, **saving))
    assert after.ranks[0].first_step == steps, f"it went on at step {after.ranks[0].first_step}, not {steps}"
    joined = replace(after, losses=(*before.losses, *after.losses), rates=(*before.rates, *after.rates))
    check_result(joined, plan)
    if into is None and count == workers:
        check_same_bits(trial.run(workers, plan), joined)


def check_nonfinite(trial: Trial, workers: int, plan: Plan, expected_ranks: Sequence[int], position: int) -> None:
    """A loss that is not a number names step and worker, and leaves everything as it was before that step."""
    sample = int(epoch_order(plan.seed, 0, plan.samples)[position])
    order = trial.order(plan, poison=sample)
    (trained,) = trial.train(workers, order)
    for record in trained.ranks:
        failure = record.failure
        assert failure is not None, "the loss was not a number, and training went on"
        assert failure.step == position // plan.global_batch, f"it names step {failure.step}"
        assert list(failure.ranks) == list(expected_ranks), f"it names workers {failure.ranks}"
        assert failure.before.keys() == failure.after.keys(), "the failed step left tensors behind"
        for name, piece in failure.before.items():
            assert same_bits(piece.tensor, failure.after[name].tensor), f"{name} changed in the failed step"
    for name, piece in trained.ranks[0].failure.before.items() if trained.ranks[0].failure else ():
        if piece.is_whole and name.startswith("model."):
            held = trained.ranks[-1].held[name.removeprefix("model.")]
            assert same_bits(held, piece.tensor), f"the last worker's {name} changed in the failed step"


def check_refuses_sparse(trial: Trial, workers: int) -> None:
    """A model that makes sparse gradients is refused by a message that says so."""
    words = ""
    try:
        trial.run(workers, Plan("sparse", samples=203, epochs=1))
    except AssertionError as error:
        words = str(error)
    assert words, "sparse gradients were accepted"
    assert "ConfigError: the model makes sparse gradients" in words, words


def _with_gradients_from_elsewhere(session: Session) -> None:
    """As a callback that looks at saliency: the first worker computes gradients between steps, of which it forgets
    every second one only."""
    original = Run.step

    def step(self: Run, work: Work) -> float:
        loss, program = original(self, work), self._spec.program
        if session.world.is_first:
            few = self._spec.train.fetch(np.arange(3), 0, self.config.seed)
            program.model.eval()  # without draws, and without a trace in running statistics
            program.objective(program.model, few).backward()
            program.model.train()
            if self.cursor.step % 2:
                program.model.zero_grad()
        return loss

    Run.step = step  # type: ignore[method-assign]


def check_gradients_from_elsewhere(trial: Trial, workers: int, plan: Plan, **how: Any) -> None:
    """A backward that is no part of a step is in no step."""
    trained = trial.prepared(_with_gradients_from_elsewhere).run(workers, plan, **how)
    difference = distance(trained.parameters, reference(plan).parameters)
    assert difference <= PARAMETERS, f"{plan}: the parameters differ by {difference:.1e} from plain PyTorch"


def check_given_back(trial: Trial, workers: int, plan: Plan) -> None:
    """After the run the user's model has no hooks, and trains on in plain PyTorch as any other would."""
    trained = trial.run(workers, plan)
    model = plan.what.model()
    model.load_state_dict(trained.ranks[0].held)
    step_in_plain_pytorch(model, plan)
    for rank, record in enumerate(trained.ranks):
        assert record.hooks_left == 0, f"{record.hooks_left} hooks are left on the model of rank {rank}"
        for name, tensor in model.state_dict().items():
            assert torch.allclose(record.afterwards[name], tensor, rtol=1e-5, atol=1e-7), f"{name} on rank {rank}"


def _without_tiles(session: Session) -> None:
    """Some virtual machines announce the tile instructions (AMX) that oneDNN uses for bf16, and die of them."""
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"  # read at the first operation


def check_near_in_bfloat16(trial: Trial, workers: int, plan: Plan) -> None:
    """bf16 autocast runs, is near to float32, and is not float32."""
    trained = trial.prepared(_without_tiles).run(workers, replace(plan, precision="bf16"))
    expected = reference(plan)
    difference = largest_difference(trained.losses, expected.losses)
    assert difference <= 0.05, f"a loss differs by {difference:.1e} from float32"
    assert difference > 1e-5, "this was float32"
    for name, tensor in trained.parameters.items():
        assert tensor.dtype != torch.bfloat16, f"{name} was kept in bf16"
