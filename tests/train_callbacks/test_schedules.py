"""Schedules: pure, continuous, the same in whatever unit they are written."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.cursor import Batches, Cursor
from shoal.core.errors import ConfigError
from shoal.train.schedules import Constant, Cosine, Function, Linear, Schedule, Steps, TorchSchedule

pytestmark = pytest.mark.unit

DECAYS: list[Callable[..., Schedule]] = [Cosine, Linear]


def cursors(batches: Batches, steps: int) -> list[Cursor]:
    """The positions before each of the first `steps` steps, and the one after them."""
    found = [Cursor()]
    for _ in range(steps):
        found.append(batches.after(found[-1]))
    return found


def factors(schedule: Schedule, batches: Batches, steps: int) -> list[float]:
    return [schedule.factor(cursor, batches.per_epoch) for cursor in cursors(batches, steps)]


UNEVEN = Batches(samples=1437, global_batch=100, grain=4)  # 15 steps an epoch, the last one smaller
batches_of_any_size = st.builds(Batches, st.integers(1, 300), st.integers(1, 50), st.just(1))


def test_constant() -> None:
    assert factors(Constant(), UNEVEN, 20) == [1.0] * 21


def test_cosine_is_that_of_torch() -> None:
    steps, floor, rate = 90, 0.05, 0.3
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps, eta_min=floor * rate)
    for cursor in cursors(UNEVEN, steps):
        factor = Cosine("6 epochs", floor=floor).factor(cursor, UNEVEN.per_epoch)
        assert rate * factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-15)
        optimizer.step()
        reference.step()


def test_linear_is_that_of_torch() -> None:
    steps, floor = 45, 0.1
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, floor, total_iters=steps)
    for factor in factors(Linear("45 steps", floor=floor), UNEVEN, steps + 5):
        assert factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        reference.step()


def test_steps_are_those_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 45], gamma=0.5)
    for factor in factors(Steps(["2 epochs", "45 steps"], by=0.5), UNEVEN, 60):
        assert factor == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        reference.step()


@pytest.mark.parametrize("decay", DECAYS)
@given(batches=batches_of_any_size, epochs=st.integers(2, 6), floor=st.floats(0, 1))
def test_epochs_and_the_same_number_of_steps_agree(
    decay: Callable[..., Schedule], batches: Batches, epochs: int, floor: float
) -> None:
    steps = epochs * batches.per_epoch
    by_epochs = decay(f"{epochs} epochs", warmup="1 epoch", floor=floor)
    by_steps = decay(f"{steps} steps", warmup=f"{batches.per_epoch} steps", floor=floor)
    mixed = decay(f"{epochs} epochs", warmup=f"{batches.per_epoch} steps", floor=floor)
    expected = factors(by_epochs, batches, steps + 3)
    assert factors(by_steps, batches, steps + 3) == pytest.approx(expected, abs=1e-12)
    assert factors(mixed, batches, steps + 3) == pytest.approx(expected, abs=1e-12)


@given(batches=batches_of_any_size, at=st.integers(1, 4))
def test_steps_in_epochs_and_in_steps_agree(batches: Batches, at: int) -> None:
    by_epochs, by_steps = Steps([f"{at} epochs"]), Steps([f"{at * batches.per_epoch} steps"])
    length = 5 * batches.per_epoch
    assert factors(by_epochs, batches, length) == factors(by_steps, batches, length)


@pytest.mark.parametrize("decay", DECAYS)
@given(
    total=st.integers(2, 400),
    warmup=st.integers(0, 399),
    floor=st.floats(0, 1),
    step=st.integers(0, 500),
)
def test_between_floor_and_one_and_without_jumps(
    decay: Callable[..., Schedule], total: int, warmup: int, floor: float, step: int
) -> None:
    warmup = min(warmup, total - 1)
    schedule = decay(f"{total} steps", warmup=f"{warmup} steps" if warmup else None, floor=floor)
    here = schedule.factor(Cursor(step=step), 10)
    after = schedule.factor(Cursor(step=step + 1), 10)
    assert 0.0 <= here <= 1.0
    if step >= warmup:
        assert floor <= here + 1e-12
        assert after <= here + 1e-12
    if step >= total:
        assert here == floor
    steepest = max(1.0 / warmup if warmup else 0.0, math.pi / 2 / (total - warmup))
    assert abs(after - here) <= steepest + 1e-9


@pytest.mark.parametrize("decay", DECAYS)
def test_warmup_rises_in_a_line_and_peaks_at_its_end(decay: Callable[..., Schedule]) -> None:
    values = factors(decay("10 epochs", warmup="30 steps"), UNEVEN, 150)
    assert values[:31] == pytest.approx([step / 30 for step in range(31)])
    assert max(values) == values[30] == 1.0
    assert values[150] == 0.0


def test_lengths_in_samples_follow_the_samples() -> None:
    schedule = Linear("2874 samples")
    for cursor in cursors(UNEVEN, 30):
        assert schedule.factor(cursor, UNEVEN.per_epoch) == pytest.approx(1 - cursor.samples / 2874)


def test_a_function_gets_the_cursor() -> None:
    assert Function(lambda cursor: cursor.step / 2).factor(Cursor(step=3), 10) == 1.5


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_function_that_returns_nonsense_is_named(value: float) -> None:
    with pytest.raises(ConfigError, match="step 7"):
        Function(lambda cursor: value).factor(Cursor(step=7), 10)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Cosine("10 furlongs"), r"Cosine\(total='10 furlongs'\).*'50 steps'"),
        (lambda: Cosine("10 epochs", warmup="soon"), r"Cosine\(warmup='soon'\)"),
        (lambda: Linear(100), r"Linear\(total=100\)"),  # type: ignore[arg-type]
        (lambda: Linear("0 steps"), "more than zero"),
        (lambda: Cosine("10 epochs", floor=2.0), "floor=2.0"),
        (lambda: Cosine("10 epochs", warmup="10 epochs"), "must be shorter"),
        (lambda: Cosine("10 epochs", warmup="1000 samples"), "both in samples, or neither"),
        (lambda: Steps([]), "give a list"),
        (lambda: Steps("30 epochs"), "give a list"),
        (lambda: Steps(["30 epochs", "x"]), r"Steps\(at='x'\)"),
        (lambda: Steps(["30 epochs"], by=0.0), "by=0.0"),
        (lambda: TorchSchedule(lambda optimizer: None, every="hour"), "'step' or 'epoch'"),  # type: ignore[arg-type, return-value]
        (lambda: TorchSchedule("cosine"), "give a function"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_refused_where_they_are_made(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_schedules_are_values() -> None:
    assert Cosine("2 epochs", warmup="1 step") == Cosine(" 2 epoch", warmup="1 steps")
    assert hash(Steps(["1 epoch"])) == hash(Steps(("1 epoch",)))
