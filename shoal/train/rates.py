"""Learning rates for each step, as a function of where training is."""

from __future__ import annotations

from typing import Any

import torch

from shoal.core.cursor import Cursor
from shoal.core.errors import ConfigError
from shoal.train.schedules import Schedule, TorchSchedule


class Rates:
    """Gives the learning rate of each parameter group for the step at a cursor.

    A schedule of PyTorch's is stepped on a stand-in optimizer, from the start of the run to the cursor, so nothing of
    it needs saving: it is a function of the number of steps, or of epochs, that were committed.
    """

    def __init__(
        self, schedule: Schedule | TorchSchedule | None, initial: tuple[float, ...], steps_per_epoch: int
    ) -> None:
        self._initial, self._steps_per_epoch = initial, steps_per_epoch
        self._schedule = schedule if isinstance(schedule, Schedule) else None
        self._torch = _Replayed(schedule, initial) if isinstance(schedule, TorchSchedule) else None
        if schedule is not None and self._schedule is None and self._torch is None:
            raise ConfigError(
                f"schedule={schedule!r}: give one of shoal.schedules, or shoal.schedules.TorchSchedule(factory)"
            )

    def at(self, cursor: Cursor) -> tuple[float, ...]:
        if self._torch is not None:
            return self._torch.at(cursor)
        if self._schedule is None:
            return self._initial
        factor = self._schedule.factor(cursor, self._steps_per_epoch)
        return tuple(rate * factor for rate in self._initial)


class _Replayed:
    def __init__(self, schedule: TorchSchedule, initial: tuple[float, ...]) -> None:
        self._unit = schedule.every
        groups: list[dict[str, Any]] = [{"params": [torch.zeros(1)], "lr": rate} for rate in initial]
        self._optimizer = torch.optim.SGD(groups, lr=1.0)
        self._scheduler = schedule.factory(self._optimizer)
        if not isinstance(self._scheduler, torch.optim.lr_scheduler.LRScheduler) or isinstance(
            self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
        ):
            raise ConfigError(
                f"schedule: {type(self._scheduler).__name__} is no schedule over steps or epochs; "
                "use one that depends on nothing but their number"
            )
        self._known = [self._now()]  # by step or epoch: what was asked for once may be asked for again

    def _now(self) -> tuple[float, ...]:
        return tuple(float(group["lr"]) for group in self._optimizer.param_groups)

    def at(self, cursor: Cursor) -> tuple[float, ...]:
        target = cursor.step if self._unit == "step" else cursor.epoch
        while len(self._known) <= target:
            self._optimizer.step()
            self._scheduler.step()
            now, before = self._now(), self._known[-1]
            self._known.append(before if now == before else now)
        return self._known[target]
