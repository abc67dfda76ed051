"""The fused kernels are chosen where the user left it open, and compute the same update."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from shoal.strategies.fused import choose_fused, step

pytestmark = pytest.mark.unit

FACTORIES: dict[str, Callable[[object], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
}


def train(factory: Callable[[object], torch.optim.Optimizer], fused: bool, rare: int = 3) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 30), nn.Linear(30, 7))
    optimizer = factory(model.parameters())
    if fused:
        assert choose_fused(optimizer)
    for number in range(30):
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(9, 50)).square().mean().backward()
        if number % 7 == rare:
            model[0].weight.grad = None  # unused in this step: momentum and decay must leave it alone
        step(optimizer)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", FACTORIES)
def test_the_update_is_the_same_up_to_rounding(name: str) -> None:
    plain, fused = train(FACTORIES[name], fused=False), train(FACTORIES[name], fused=True)
    assert (plain - fused).norm() / plain.norm() < 1e-6


@pytest.mark.parametrize("name", FACTORIES)
def test_a_parameter_may_have_its_first_gradient_later_than_others(name: str) -> None:
    """Fused SGD with momentum would end with an error in the second step."""
    plain, fused = train(FACTORIES[name], fused=False, rare=0), train(FACTORIES[name], fused=True, rare=0)
    assert (plain - fused).norm() / plain.norm() < 1e-6


@pytest.mark.parametrize(
    "factory",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, fused=False),
        lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
        lambda p: torch.optim.RMSprop(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_what_the_user_said_or_pytorch_lacks_is_left_alone(
    factory: Callable[[object], torch.optim.Optimizer],
) -> None:
    optimizer = factory(nn.Linear(3, 2).parameters())
    before = [dict(group) for group in optimizer.param_groups]
    assert not choose_fused(optimizer)
    assert [group.get("fused") for group in optimizer.param_groups] == [group.get("fused") for group in before]


def test_half_precision_is_left_alone() -> None:
    assert not choose_fused(torch.optim.SGD(nn.Linear(3, 2).bfloat16().parameters(), lr=0.1))


def test_an_optimizer_that_has_begun_is_left_alone() -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not choose_fused(optimizer)
