"""Updaters: the contract for each, and SGD and Adam beside those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shoal.core.errors import ConfigError
from shoal.store.updaters import Updater, make_updater, updaters
from shoal.testing.updater_contract import UpdaterContract

pytestmark = pytest.mark.unit

Array = npt.NDArray[Any]
Parameters = Iterable[torch.nn.Parameter]


class TestAssign(UpdaterContract):
    name = "assign"


class TestAdd(UpdaterContract):
    name = "add"


class TestSGD(UpdaterContract):
    name = "sgd"


class TestMomentum(UpdaterContract):
    name = "sgd"
    options: ClassVar = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}


class TestAdam(UpdaterContract):
    name = "adam"


class TestAdamW(UpdaterContract):
    name = "adam"
    options: ClassVar = {"weight_decay": 0.01, "decoupled": True}


class TestMixing(UpdaterContract):
    name = "average"
    options: ClassVar = {"mode": "mixing"}


class TestRunning(UpdaterContract):
    name = "average"
    options: ClassVar = {"mode": "running"}


@dataclass(frozen=True)
class Sign(Updater):
    """A user's own: the sign of the gradient, scaled by its largest element, which it finds only in the whole."""

    rate: float = 0.1
    looks_at_whole = True

    def update(
        self, values: Array, gradient: Array, state: dict[str, Array], rate: float, rows: Array | None = None
    ) -> None:
        change = rate * np.sign(gradient) * np.abs(gradient).max(initial=0)
        if rows is None:
            values -= change
        else:
            values[rows] -= change


if "sign" not in updaters:
    updaters.add("sign")(Sign)


class TestOnesOwn(UpdaterContract):
    name = "sign"


def gradients(steps: int, *shape: int, dtype: str) -> list[Array]:
    chance = np.random.default_rng(7)
    return [chance.normal(size=shape).astype(dtype) for _ in range(steps)]


OPTIMIZERS: list[tuple[str, dict[str, Any], Callable[[Parameters], torch.optim.Optimizer]]] = [
    ("sgd", {}, lambda p: torch.optim.SGD(p, lr=0.1)),
    ("sgd", {"weight_decay": 0.05}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05)),
    ("sgd", {"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (
        "sgd",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.05},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05),
    ),
    ("adam", {}, lambda p: torch.optim.Adam(p, lr=0.1)),
    (
        "adam",
        {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-5, "weight_decay": 0.05},
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.05),
    ),
    (
        "adam",
        {"weight_decay": 0.05, "decoupled": True},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.05),
    ),
]


@pytest.mark.parity
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-14)])
@pytest.mark.parametrize(
    ("name", "options", "optimizer"), OPTIMIZERS, ids=[f"{name} {options}" for name, options, _ in OPTIMIZERS]
)
def test_it_is_what_pytorch_does_up_to_rounding(
    name: str,
    options: dict[str, Any],
    optimizer: Callable[[Parameters], torch.optim.Optimizer],
    dtype: str,
    tolerance: float,
) -> None:
    values = gradients(1, 1000, dtype=dtype)[0]
    parameter = torch.nn.Parameter(torch.from_numpy(values.copy()))
    theirs, ours = optimizer([parameter]), make_updater(name, options)
    state: dict[str, Array] = {}
    for step, gradient in enumerate(gradients(30, 1000, dtype=dtype)):
        rate = 0.1 / (1 + step)
        theirs.param_groups[0]["lr"] = rate
        parameter.grad = torch.from_numpy(gradient)
        theirs.step()
        ours.update(values, gradient, state, rate)
        np.testing.assert_allclose(values, parameter.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "options", "optimizer"),
    [
        ("sgd", {}, lambda p: torch.optim.SGD(p, lr=0.1)),
        # epsilon comes before the correction of the bias there, and after it everywhere else
        ("adam", {"epsilon": 0.0}, lambda p: torch.optim.SparseAdam(list(p), lr=0.1, eps=1e-100)),
    ],
)
def test_rows_fare_as_with_sparse_gradients_of_pytorch(
    name: str, options: dict[str, Any], optimizer: Callable[[Parameters], torch.optim.Optimizer]
) -> None:
    table = gradients(1, 20, 6, dtype="float64")[0]
    parameter = torch.nn.Parameter(torch.from_numpy(table.copy()))
    theirs, ours = optimizer([parameter]), make_updater(name, options)
    state: dict[str, Array] = {}
    for step, gradient in enumerate(gradients(12, 5, 6, dtype="float64")):
        rows = np.sort(np.random.default_rng(step).choice(20, 5, replace=False))
        parameter.grad = torch.sparse_coo_tensor(
            torch.from_numpy(rows)[None], torch.from_numpy(gradient), (20, 6), check_invariants=True
        ).coalesce()
        theirs.step()
        ours.update(table, gradient, state, 0.1, rows)
        np.testing.assert_allclose(table, parameter.detach().numpy(), rtol=1e-13, atol=1e-13)


def test_running_average_is_the_mean_of_all_that_was_pushed() -> None:
    pushed = gradients(9, 40, dtype="float64")
    values, state = np.full(40, 100.0), dict[str, Array]()
    for one in pushed:
        make_updater("average", {"mode": "running"}).update(values, one, state, 0.5)
    np.testing.assert_allclose(values, np.mean(pushed, axis=0), atol=1e-14)


def test_running_average_counts_each_row_on_its_own() -> None:
    updater, state = make_updater("average", {"mode": "running"}), dict[str, Array]()
    table = np.zeros((3, 1))
    updater.update(table, np.array([[1.0], [2.0], [3.0]]), state, 1.0)
    updater.update(table, np.array([[3.0]]), state, 1.0, np.array([0]))
    updater.update(table, np.array([[5.0], [4.0]]), state, 1.0, np.array([0, 1]))
    updater.update(table, np.array([[3.0], [3.0], [3.0]]), state, 1.0)
    np.testing.assert_allclose(table, [[3.0], [3.0], [3.0]])
    assert state["count"].tolist() == [4, 3, 2]


def test_mixing_goes_part_of_the_way() -> None:
    values = np.array([0.0, 10.0])
    make_updater("average", {}).update(values, np.array([4.0, 2.0]), {}, 0.25)
    np.testing.assert_array_equal(values, [1.0, 8.0])


def test_whole_numbers_are_assigned_and_added() -> None:
    values = np.arange(4)
    make_updater("add", {}).update(values, np.array([1, 1, 1, 2**60]), {}, 0.5)
    assert values.tolist() == [1, 2, 3, 2**60 + 3]
    make_updater("assign", {}).update(values, np.arange(4), {}, 1.0)
    assert values.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("sdg", {}, "unknown updater 'sdg'.*'sgd'"),
        ("sgd", {"momentun": 0.9}, "updater 'sgd' has no option 'momentun'.*'momentum'"),
        ("sgd", {"momentum": 1.5}, "'momentum' of updater 'sgd' is 1.5.*less than 1"),
        ("sgd", {"nesterov": True}, "'nesterov'.*needs momentum"),
        ("sgd", {"rate": float("nan")}, "'rate' of updater 'sgd' is nan"),
        ("adam", {"beta2": 1.0}, "'beta2' of updater 'adam' is 1.0"),
        ("average", {"mode": "mean"}, "'mode' of updater 'average' is 'mean'.*'running'"),
        ("average", {"rate": 2.0}, "between 0 and 1"),
    ],
)
def test_a_mistake_in_an_updater_is_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_updater(name, options)


def test_all_have_a_name() -> None:
    assert {"add", "adam", "assign", "average", "sgd"} <= set(updaters)
