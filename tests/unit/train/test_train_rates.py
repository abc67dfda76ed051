"""Learning rates are a function of the cursor: replayed from anywhere, and those of PyTorch's own schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from shoal.core.cursor import Batches, Cursor
from shoal.core.errors import ConfigError
from shoal.train.rates import Rates
from shoal.train.schedules import Cosine, TorchSchedule

pytestmark = pytest.mark.unit

BATCHES = Batches(samples=203, global_batch=100, grain=1)

FACTORIES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: schedulers.StepLR(o, 4, gamma=0.3),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 12),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, max_lr=[0.5, 0.05], total_steps=20),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda n: 1 / (1 + n)),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=3), schedulers.ExponentialLR(o, 0.9)], [3]
    ),
}


def _cursors(count: int) -> list[Cursor]:
    cursors = [Cursor()]
    while len(cursors) < count:
        cursors.append(BATCHES.after(cursors[-1]))
    return cursors


def _plain(factory: Callable[[Any], Any], count: int) -> list[tuple[float, ...]]:
    """The rates of a plain loop: step, then move the scheduler on."""
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [weights[0]], "lr": 0.1}, {"params": [weights[1]], "lr": 0.01}], lr=1.0)
    scheduler = factory(optimizer)
    rates = []
    for _ in range(count):
        rates.append(tuple(float(group["lr"]) for group in optimizer.param_groups))
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_a_scheduler_of_pytorch_gives_its_own_rates(name: str) -> None:
    rates = Rates(TorchSchedule(FACTORIES[name]), (0.1, 0.01), BATCHES.per_epoch)
    assert [rates.at(cursor) for cursor in _cursors(15)] == _plain(FACTORIES[name], 15)


def test_a_scheduler_may_move_with_epochs() -> None:
    rates = Rates(TorchSchedule(FACTORIES["StepLR"], every="epoch"), (0.1, 0.01), BATCHES.per_epoch)
    by_epoch = _plain(FACTORIES["StepLR"], 6)
    for cursor in _cursors(15):
        assert rates.at(cursor) == pytest.approx(by_epoch[cursor.epoch], rel=1e-9)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_a_run_that_goes_on_in_the_middle_takes_the_same_rates(name: str) -> None:
    whole = Rates(TorchSchedule(FACTORIES[name]), (0.1, 0.01), BATCHES.per_epoch)
    expected = [whole.at(cursor) for cursor in _cursors(15)]
    resumed = Rates(TorchSchedule(FACTORIES[name]), (0.1, 0.01), BATCHES.per_epoch)
    assert [resumed.at(cursor) for cursor in _cursors(15)[7:]] == expected[7:]


def test_a_schedule_multiplies_the_rate_of_every_group() -> None:
    rates = Rates(Cosine("10 steps"), (0.1, 0.01), BATCHES.per_epoch)
    assert rates.at(Cursor(step=5)) == pytest.approx((0.05, 0.005))


def test_without_a_schedule_rates_stay_as_the_optimizer_states_them() -> None:
    rates = Rates(None, (0.1, 0.01), BATCHES.per_epoch)
    assert {rates.at(cursor) for cursor in _cursors(15)} == {(0.1, 0.01)}


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give one of shoal\.schedules"):
        Rates("cosine", (0.1,), 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ReduceLROnPlateau is no schedule over steps or epochs"):
        Rates(TorchSchedule(schedulers.ReduceLROnPlateau), (0.1,), 3)


def test_a_scheduler_of_pytorch_may_be_asked_for_what_lies_behind() -> None:
    """A stretch that was broken off, or ended early, goes on from an earlier step than it was planned to."""
    rates = Rates(TorchSchedule(FACTORIES["CosineAnnealingLR"]), (0.1, 0.01), BATCHES.per_epoch)
    cursors = _cursors(10)
    forwards = [rates.at(cursor) for cursor in cursors]
    assert [rates.at(cursor) for cursor in reversed(cursors)] == forwards[::-1]
