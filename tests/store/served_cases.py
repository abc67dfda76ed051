"""One worker that trains with servers which are threads of this process: its strategy, step by step, without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from kvstore_fleets import LocalFleet
from torch import Tensor, nn

import shoal.strategies.torch_updater  # noqa: F401 - what servers of a training run know
from shoal.comm.control import ControlPage
from shoal.comm.solo import SoloGroup
from shoal.core.config import AsynchronousSettings
from shoal.core.cursor import Batches, Cursor
from shoal.core.state import Piece, ShardedState
from shoal.core.world import Member, View, World
from shoal.store.access import FleetAccess
from shoal.strategies.base import Pass, Portion, Runtime, Strategy, Work
from shoal.strategies.objective import make_objective
from shoal.strategies.program import Program
from shoal.strategies.single import Single

SAMPLES, BATCH, RATE = 42, 7, 0.1
BATCHES = Batches(SAMPLES, BATCH, BATCH)
Optimizer = Callable[[Any], torch.optim.Optimizer]


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, 4, generator=generator), torch.randint(3, (SAMPLES,), generator=generator)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


class Trainee:
    """One life of a worker of run `number`. It begins as all do, in view `view`."""

    def __init__(
        self,
        strategy: Strategy[Any],
        fleet: LocalFleet | None = None,
        view: int = 1,
        model: Callable[[], nn.Module] = mlp,
        optimizer: Optimizer = sgd,
        number: int = 1,
    ) -> None:
        torch.manual_seed(0)
        self.model, self._strategy, self._control = model(), strategy, ControlPage()
        self._data = inputs()
        access = FleetAccess(fleet.wait_ready, fleet.keys.client(), number) if fleet is not None else None
        member = Member("worker", 0, "host", 1, key=f"life {view}", agent="host")
        self._runtime = Runtime(
            World(), View(view, (member,)), SoloGroup(), self._control, seed=0, fleet=access, exact_sums=True,
            asynchronous=AsynchronousSettings(), fit=0,
        )  # fmt: skip
        program = Program(self.model, make_objective(nn.CrossEntropyLoss()), optimizer)
        self.replica = strategy.bind(program, self._runtime)

    def do(self, step: int, count: int = 1) -> list[int]:
        """Steps from `step` on, in one act. Returns how many batches each act has counted."""
        done = []
        while step < SAMPLES // BATCH and count > 0:
            result = self._strategy.step(self.replica, self._work(step, count))
            batches = result.batches if result.batches is not None else 1
            assert batches, "an act has counted nothing"
            done.append(batches)
            step, count = step + batches, count - batches
        return done

    def _work(self, step: int, count: int) -> Work:
        batches = [BATCHES.at(Cursor(0, at, at)) for at in range(step, step + count)]
        rates = (RATE,) * len(self._strategy.initial_learning_rates(self.replica))
        stretch = [(batch, rates) for batch in batches]

        def stream(portions: Iterable[Portion]) -> Iterator[list[Pass]]:
            for batch, _ in portions:
                yield self._passes(batch.cursor.batch)

        if not self._strategy.needs.leases:
            return Work(batches[0], self._passes(step), rates, stretch=stretch[:1])
        return Work(batches[0], [], rates, stretch=stretch, stream=stream)

    def _passes(self, at: int) -> list[Pass]:
        rows = slice(at * BATCH, (at + 1) * BATCH)
        batch = tuple(one[rows] for one in self._data)
        return [Pass(BATCHES.at(Cursor(0, at, at)).grains, np.arange(rows.start, rows.stop), batch)]

    def checkpoint(self) -> ShardedState:
        """What a checkpoint holds, copied as a disk would."""
        state = self._strategy.state(self.replica)
        pieces = {name: Piece(one.tensor.clone(), one.shape, one.offset) for name, one in state.pieces.items()}
        return ShardedState(pieces, dict(state.values))

    def load(self, state: ShardedState) -> Trainee:
        pieces = {name: replace(one, tensor=one.tensor.clone()) for name, one in state.pieces.items()}
        self._strategy.load(self.replica, ShardedState(pieces, dict(state.values)))
        return self

    def die(self) -> None:
        """It says nothing to the servers. May be called twice."""
        self._strategy.close(self.replica)
        self._control.close()

    def __enter__(self) -> Trainee:
        return self

    def __exit__(self, *rest: object) -> None:
        self.die()

    def parameters(self) -> dict[str, Tensor]:
        return {name: one.detach().clone() for name, one in self.model.named_parameters()}


def undisturbed(strategy: Strategy[Any], steps: int, fleet: LocalFleet | None = None, **how: Any) -> dict[str, Tensor]:
    """What training without any trouble makes of the parameters."""
    with Trainee(strategy, fleet, **how) as one:
        one.do(0, steps)
        return one.parameters()


def alone(steps: int, **how: Any) -> dict[str, Tensor]:
    """The same in one process, without servers."""
    return undisturbed(Single(), steps, **how)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 0.0) -> None:
    for name, one in expected.items():
        apart = float((found[name] - one).abs().max())
        assert apart <= tolerance, f"{name} differs by {apart} from {tolerance}"
