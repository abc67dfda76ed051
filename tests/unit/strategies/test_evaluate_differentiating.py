"""A loss that differentiates (a gradient penalty) is evaluated as it is trained; others pay nothing for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.comm.control import ControlPage
from shoal.comm.solo import SoloGroup
from shoal.core.world import View, World
from shoal.strategies.base import Runtime
from shoal.strategies.objective import make_objective
from shoal.strategies.program import Program
from shoal.strategies.single import Single, SingleReplica

pytestmark = pytest.mark.unit
BATCH = (torch.linspace(-1.0, 1.0, 12).reshape(4, 3), torch.tensor([[1.0], [0.0], [1.0], [0.0]]))


def with_penalty(model: nn.Module, batch: Any) -> Tensor:
    """As of WGAN-GP: the norm of the gradient by the input is held at one."""
    inputs = batch[0].detach().requires_grad_()
    output = model(inputs)
    (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
    return nn.functional.mse_loss(output, batch[1]) + (slope.norm(dim=1) - 1).square().mean()


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    control = ControlPage()
    yield Runtime(World(), View(1, ()), SoloGroup(), control, seed=1)
    control.close()


def replica(runtime: Runtime, loss: Any, metrics: Any = None) -> SingleReplica:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    program = Program(model, make_objective(loss), lambda p: torch.optim.SGD(p, lr=0.1), metrics or {})
    return Single().bind(program, runtime)


def test_a_gradient_penalty_is_evaluated(runtime: Runtime) -> None:
    seen = []

    def metric(model: nn.Module, batch: Any) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return model(batch[0]).flatten()

    one = replica(runtime, with_penalty, {"mean": metric})
    for _ in range(2):
        total, weight = one.evaluate(BATCH)["loss"]
        assert total / weight == pytest.approx(float(with_penalty(one.module, BATCH).detach()))
    assert seen == [False, False], "metrics have no use for a graph"
    assert all(parameter.grad is None for _, parameter in one.parameters)
    assert one.module.training


def test_who_does_not_differentiate_has_no_graph(runtime: Runtime) -> None:
    seen = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    one = replica(runtime, loss)
    one.evaluate(BATCH)
    one.evaluate(BATCH)
    assert seen == [False, False]


def test_another_error_is_shown_as_it_was(runtime: Runtime) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        raise RuntimeError(f"a bad day, with gradients: {torch.is_grad_enabled()}")

    with pytest.raises(RuntimeError, match="a bad day, with gradients: False"):
        replica(runtime, loss).evaluate(BATCH)
