"""What counts as the gradient of a step: what plain PyTorch would have in ``parameter.grad`` after its backward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.comm.control import ControlPage
from shoal.comm.solo import SoloGroup
from shoal.core.cursor import Batches, Cursor
from shoal.core.order import epoch_order
from shoal.core.world import View, World
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.base import Pass, Runtime, Strategy, Work
from shoal.strategies.objective import LossFunction, make_objective
from shoal.strategies.program import Program
from shoal.strategies.single import Single

pytestmark = pytest.mark.unit

DATA = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 2
PARTS = 2


def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Linear(3, 2)


def penalised(forgets: bool) -> LossFunction:
    """Looks for the worst change of the input by a backward of its own, as training against adversaries does."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        F.cross_entropy(model(inputs), batch[1]).backward()  # type: ignore[no-untyped-call]
        if forgets:
            model.zero_grad()
        assert inputs.grad is not None
        return F.cross_entropy(model(batch[0] + 0.1 * inputs.grad.sign()), batch[1])

    return loss


@pytest.fixture
def control() -> Iterator[ControlPage]:
    page = ControlPage()
    yield page
    page.close()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("strategy", [Single(), AllReduce()], ids=["single", "allreduce"])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_loss_that_goes_backward_itself(
    control: ControlPage, strategy: Strategy[object], exact: bool, forgets: bool
) -> None:
    """Where it forgets what it has computed, it forgets no other pass of the step."""
    expected, given = model(), model()
    gradient = [torch.zeros_like(p) for p in expected.parameters()]
    for part in zip(*(whole.chunk(PARTS) for whole in DATA), strict=True):
        expected.zero_grad()
        loss = penalised(forgets)(expected, part)
        assert isinstance(loss, Tensor)
        loss *= len(part[0])  # the loss is a mean: what a step adds up are sums
        loss.backward()  # type: ignore[no-untyped-call]
        for total, parameter in zip(gradient, expected.parameters(), strict=True):
            assert parameter.grad is not None
            total.add_(parameter.grad / len(DATA[0]))
    with torch.no_grad():
        for total, parameter in zip(gradient, expected.parameters(), strict=True):
            parameter.sub_(0.1 * total)

    runtime = Runtime(World(), View(1, ()), SoloGroup(), control, seed=0, exact_sums=exact)
    program = Program(given, make_objective(penalised(forgets)), lambda params: torch.optim.SGD(params, lr=0.1))
    replica = strategy.bind(program, runtime)
    batch, order = Batches(8, 8, 8 // PARTS).at(Cursor()), epoch_order(0, 0, 8, shuffle=False)
    passes = [
        Pass((grain,), order[grain.start : grain.stop], tuple(whole[grain.start : grain.stop] for whole in DATA))
        for grain in batch.grains
    ]
    strategy.step(replica, Work(batch, passes, (0.1,)))
    strategy.close(replica)
    for found, parameter in zip(given.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, parameter)


def test_what_is_computed_between_steps_stays_where_plain_pytorch_leaves_it(control: ControlPage) -> None:
    strategy, given = AllReduce(), model()
    runtime = Runtime(World(), View(1, ()), SoloGroup(), control, seed=0)
    program = Program(given, make_objective(nn.CrossEntropyLoss()), lambda params: torch.optim.SGD(params, lr=0.1))
    replica = strategy.bind(program, runtime)
    expected = model()
    for one in (given, expected):
        for _ in range(2):
            F.cross_entropy(one(DATA[0]), DATA[1]).backward()  # type: ignore[no-untyped-call]
    for found, parameter in zip(given.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.grad, parameter.grad)
    strategy.close(replica)
