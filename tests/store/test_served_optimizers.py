"""What optimizers remember on servers goes into checkpoints and comes out of them, whatever they keep and however it is
cut: over other servers, and in strategies without any."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kvstore_fleets import LocalFleet
from served_cases import BATCH, RATE, SAMPLES, Optimizer, Trainee, alone, assert_equal, undisturbed
from torch import Tensor, nn

from shoal.core.consistency import SSP
from shoal.core.staleness import Aging
from shoal.core.state import ShardedState
from shoal.store.kvstore import KVStore
from shoal.store.operations import GetState
from shoal.store.values import Rows
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.single import Single

pytestmark = pytest.mark.unit
STEPS = SAMPLES // BATCH
ROWS = 400
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def fleets() -> Iterator[dict[str, LocalFleet]]:
    with LocalFleet(2) as two, LocalFleet(3) as three:
        yield {"2 servers": two, "3 servers": three}


class Table(nn.Module):
    """Only rows from 0 to 4 are ever touched: all of them on the first server."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=True)
        self.rest = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rest(self.table((x[:, 0].abs() * 2).long().clamp(max=4)))
        return out


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 120, bias=False), nn.Tanh(), nn.Linear(120, 3, bias=False))


CASES: dict[str, tuple[Callable[[], nn.Module], Optimizer]] = {
    "table, momentum": (Table, lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9)),
    "table, damped momentum": (Table, lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9, dampening=0.5)),
    "table, Adam": (Table, lambda p: torch.optim.Adam(p, lr=RATE)),
    "table, Adagrad": (Table, lambda p: torch.optim.Adagrad(p, lr=RATE, initial_accumulator_value=0.1)),
    "table, NAdam": (Table, lambda p: torch.optim.NAdam(p, lr=RATE)),
    "Muon": (matrices, lambda p: torch.optim.Muon(p, lr=RATE)),
    "Adafactor": (matrices, lambda p: torch.optim.Adafactor(p, lr=RATE)),
    "Adafactor, biases": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), torch.optim.Adafactor),
    "AdamW": (matrices, lambda p: torch.optim.AdamW(p, lr=RATE)),
}


def assert_saved(found: ShardedState, expected: ShardedState) -> None:
    """What was loaded is saved again as it was."""
    assert found.pieces.keys() == expected.pieces.keys()
    for name, one in expected.pieces.items():
        assert torch.equal(found.pieces[name].tensor, one.tensor), name


def train(places: list[LocalFleet | None], model: Any, optimizer: Any) -> dict[str, Tensor]:
    """Two steps in each place, one after the other, each from the checkpoint of the one before."""
    state, number = None, next(NUMBERS)
    for at, fleet in enumerate(places):
        with Trainee(ParameterServer() if fleet else Single(), fleet, at + 1, model, optimizer, number) as one:
            if state is not None:
                assert_saved(one.load(state).checkpoint(), state)
            one.do(2 * at, 2)
            state, found = one.checkpoint(), one.parameters()
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "way", ["2 servers, 3 servers, 2 servers", "alone, 2 servers, alone", "2 servers, alone, 3 servers"]
)
def test_goes_on_from_a_checkpoint(fleets: dict[str, LocalFleet], case: str, way: str) -> None:
    model, optimizer = CASES[case]
    found = train([fleets.get(name) for name in way.split(", ")], model, optimizer)
    if not case.startswith("table"):
        assert_equal(found, alone(STEPS, model=model, optimizer=optimizer), 2e-6)
    elif "alone" not in way:  # of tables, servers update touched rows only
        how = {"model": model, "optimizer": optimizer, "number": next(NUMBERS)}
        assert_equal(found, undisturbed(ParameterServer(), STEPS, fleets["2 servers"], **how), 2e-6)


def test_only_who_takes_tasks_speaks_of_old_updates(fleets: dict[str, LocalFleet]) -> None:
    for strategy, expected in [(ParameterServer(), None), (ParameterServer(SSP(2)), Aging(False, 0.9, 1))]:
        with Trainee(strategy, fleets["2 servers"], number=next(NUMBERS)) as one:
            assert strategy.aging(one.replica) == expected


def test_tables_count_their_steps_alike_however_they_are_cut(fleets: dict[str, LocalFleet]) -> None:
    """The slice that nobody has touched so far is as far as the others: its first row is not its optimizer's first."""

    def counts(fleet: LocalFleet) -> set[float]:
        model, optimizer = CASES["table, Adam"]
        with Trainee(ParameterServer(), fleet, 1, model, optimizer, next(NUMBERS)) as one:
            one.do(0, 3)
            kv, key = one.replica.kv, f"{one.replica.run}/table.weight"
            asked = [kv._read(post, GetState(part.label), "", 5.0) for post, part in kv._find(key)[1]]
            states = [one.result().state for one in asked]
            assert len(states) > 1
            return {float(state["step:scalar"][0]) for state in states}

    assert counts(fleets["2 servers"]) == counts(fleets["3 servers"]) == {3.0}


def test_a_slice_that_was_never_pushed_to_keeps_nothing(fleets: dict[str, LocalFleet]) -> None:
    fleet = fleets["2 servers"]
    with KVStore(fleet.wait_ready, key=fleet.keys.client()) as store:
        store.declare("rows", (400, 8), sparse=True, updater="sgd", options={"rate": 0.1, "momentum": 0.9})
        assert len(store.slices("rows")) > 1
        assert store.updater_state("rows") == {}
        store.push_many({"rows": Rows([399], np.ones((1, 8)))}).result()
        (moment,) = store.updater_state("rows").values()
        assert moment.shape == (400, 8)
        assert np.flatnonzero(moment.any(axis=1)).tolist() == [399]
        store.set_updater_state("rows", store.updater_state("rows"))
        store.push_many({"rows": Rows([399], np.ones((1, 8)))}).result()
        assert store.get("rows", rows=[399])[0, 0] == pytest.approx(-0.1 - 0.19)
