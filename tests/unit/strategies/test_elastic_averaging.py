"""Elastic averaging: local and central weights are drawn together as a few lines of NumPy do it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shoal.comm.control import ControlPage
from shoal.comm.solo import SoloGroup
from shoal.core.config import AsynchronousSettings
from shoal.core.consistency import ASP
from shoal.core.cursor import Batches, Cursor
from shoal.core.world import Member, View, World
from shoal.store.answers import NothingLeft, Record
from shoal.store.operations import Era, Task
from shoal.strategies import served_model
from shoal.strategies.base import Pass, Portion, Runtime, Work
from shoal.strategies.objective import make_objective
from shoal.strategies.parameter_server import Asynchronous, ParameterServer
from shoal.strategies.program import Program
from shoal.strategies.tasks import TaskReplica

pytestmark = pytest.mark.unit

Array = np.ndarray[Any, np.dtype[np.float64]]
SAMPLES, BATCH, RATE, MOMENTUM = 70, 7, 0.3, 0.5
INPUTS = np.random.default_rng(1).normal(size=(SAMPLES, 4))
OUTPUTS = np.random.default_rng(2).normal(size=(SAMPLES, 3))
BEGINNING = np.random.default_rng(3).normal(size=(3, 4))


def future(value: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(value)
    return done


class CentralStore:
    """One array, to which commits add what was staged. Tasks are dealt out in order."""

    bytes_sent, deadline_s = 0, 60.0

    def __init__(self) -> None:
        self.central: dict[str, Any] = {}
        self.version = 0
        self._left: list[int] = []
        self._staged: dict[str, Any] = {}
        self._log: list[Record] = []
        self.damped: list[bool] = []
        self.updaters = {"add"}

    def register(self, declarations: Sequence[Any]) -> None:
        assert {one.updater for one in declarations} <= self.updaters, "servers only add differences up"

    def wait(self, future: Future[Any]) -> Any:
        return future.result()

    def set_many(self, values: dict[str, Any]) -> Future[None]:
        self.central = {name: np.array(value) for name, value in values.items()}
        return future(None)

    def refresh(self, out: dict[str, Any], *_: Any, **__: Any) -> Future[dict[int, int]]:
        for name, array in out.items():
            array[...] = self.central[name]
        return future({0: self.version})

    def open(self, stretch: int, count: int, *_: Any) -> None:
        self._stretch, self._left = stretch, list(range(count))

    def lease(self, worker: str, **_: Any) -> Task | NothingLeft:
        left = self._left
        return Task(self._stretch, left.pop(0), worker) if left else NothingLeft(self.version, self._stretch)

    def stage(self, transaction: str, part: int, given: dict[str, Any]) -> Future[None]:
        self._staged = {name: np.array(value) for name, value in given.items()}
        return future(None)

    def commit(self, transaction: str, *_: Any, record: bytes, read_version: int, damping: bool, **__: Any) -> None:
        self.damped.append(damping)
        for name, change in self._staged.items():
            self.central[name] += change
        self._log.append(Record(self.version, self.version - read_version, transaction, record))
        self.version += 1

    def eras(self) -> dict[str, int]:
        return {"1.0": 1}

    def renew(self, run: str, above: int) -> Era:
        return Era(run, 1)

    def records(self, **_: Any) -> list[Record]:
        return list(self._log)

    def forget(self, upto: int) -> None:
        self._log.clear()

    def progress(self) -> Any:
        return SimpleNamespace(clocks={})

    def join(self, worker: str) -> None: ...

    def set_updater_state(self, name: str, state: Any) -> None: ...

    def settle(self, abandoned: Any) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CentralStore:
    central = CentralStore()
    monkeypatch.setattr(served_model, "KVStore", lambda *args, **how: central)
    return central


@pytest.fixture
def control() -> Iterator[ControlPage]:
    page = ControlPage()
    yield page
    page.close()


def worker(
    name: str, control: ControlPage, mixing: float | None, alike: bool, strategy: ParameterServer | None = None
) -> TaskReplica:
    model = nn.Linear(4, 3, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(BEGINNING))
    view = View(1, (Member("worker", 0, "host", 1, key=name, agent="host"),))
    fleet: Any = SimpleNamespace(number=1, keys=None)
    runtime = Runtime(
        World(), view, SoloGroup(), control, seed=0, fleet=fleet, alike=alike,
        asynchronous=AsynchronousSettings(mixing=mixing),
    )  # fmt: skip
    program = Program(
        model, make_objective(nn.MSELoss()), lambda params: torch.optim.SGD(params, lr=RATE, momentum=MOMENTUM)
    )
    replica = (strategy or Asynchronous()).bind(program, runtime)
    assert isinstance(replica, TaskReplica)
    return replica


def stretch(first: int, count: int) -> Work:
    """So many global batches in a row, from number `first` on."""
    batches, at = Batches(SAMPLES, BATCH, BATCH), Cursor()
    cursors = list(itertools.accumulate(range(first + count), lambda cursor, _: batches.after(cursor), initial=at))
    chosen = [batches.at(cursor) for cursor in cursors[first : first + count]]

    def stream(portions: Iterable[Portion]) -> Iterator[list[Pass]]:
        for batch, grains in portions:
            numbers = np.arange(batch.start, batch.stop)
            yield [Pass(grains, numbers, (torch.from_numpy(INPUTS[numbers]), torch.from_numpy(OUTPUTS[numbers])))]

    return Work(chosen[0], [], (RATE,), stretch=tuple((batch, (RATE,)) for batch in chosen), stream=stream)


class Reference:
    """x is a worker's own, c the central one: x steps by its gradient, then both go `mixing` of the way that is between
    them towards each other."""

    def __init__(self, mixing: float) -> None:
        self.mixing, self.central = mixing, BEGINNING.copy()
        self._own: dict[str, Array] = {}
        self._velocity: dict[str, Array] = {}

    def task(self, name: str, batch: int) -> None:
        inputs, outputs = (array[batch * BATCH : (batch + 1) * BATCH] for array in (INPUTS, OUTPUTS))
        own = self._own.get(name, self.central)
        gradient = 2 * (inputs @ own.T - outputs).T @ inputs / outputs.size
        self._velocity[name] = MOMENTUM * self._velocity.get(name, np.zeros_like(own)) + gradient
        stepped = own - RATE * self._velocity[name]
        self._own[name] = stepped - self.mixing * (stepped - self.central)
        self.central = self.central + self.mixing * (stepped - self.central)


@pytest.mark.parametrize("mixing", [0.3, 1.0])
def test_workers_in_turn_move_the_central_weights_as_the_reference_does(
    store: CentralStore, control: ControlPage, mixing: float
) -> None:
    replicas = {name: worker(name, control, mixing, alike=name == "b") for name in ("a", "b")}
    expected, at = Reference(mixing), 0
    for name, count in (("a", 2), ("b", 3), ("a", 1), ("b", 1), ("a", 3)):
        result = replicas[name].act(stretch(at, count))
        for _ in range(count):
            expected.task(name, at)
            at += 1
        (central,) = store.central.values()
        assert np.allclose(central, expected.central, rtol=1e-12, atol=1e-12)
        held = replicas[name].program.model.weight.detach().numpy()
        assert np.array_equal(held, central), "between two stretches a worker's model is the central one"
        assert result.staleness == (0,) * count, "nobody else has committed anything meanwhile"
    assert not np.allclose(expected.central, BEGINNING, atol=0.1)
    for replica in replicas.values():
        replica.close()


@pytest.mark.parametrize(
    ("strategy", "mixing", "damped"),
    [(Asynchronous(), None, True), (Asynchronous(), 0.5, False), (ParameterServer(ASP()), None, False)],
)
def test_old_updates_count_less_under_async_only(
    store: CentralStore, control: ControlPage, strategy: ParameterServer, mixing: float | None, damped: bool
) -> None:
    """What is drawn together is not damped, and a parameter server takes updates as they are."""
    store.updaters = {"torch", "add"}
    worker("a", control, mixing, alike=False, strategy=strategy).act(stretch(0, 2))
    assert store.damped == [damped, damped]
