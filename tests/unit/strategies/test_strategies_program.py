"""What a program is refused for before it runs, and what its pieces do to a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.core.config import Clip
from shoal.core.errors import ConfigError
from shoal.strategies.buffers import RunningBuffers
from shoal.strategies.objective import make_objective
from shoal.strategies.program import Program
from shoal.strategies.replica import clip_gradients, clip_weights, refuse_sparse

pytestmark = pytest.mark.unit


def _program(model: nn.Module, optimizer: Any = lambda params: torch.optim.SGD(params, lr=0.1)) -> Program:
    return Program(model, make_objective(nn.MSELoss()), optimizer)


def test_only_trained_parameters_reach_the_optimizer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    given = _program(model).build_optimizer().param_groups[0]["params"]
    assert [id(parameter) for parameter in given] == [id(parameter) for parameter in model[0].parameters()]


def test_an_optimizer_that_exists_is_used_as_it_is() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    assert _program(model, optimizer).build_optimizer() is optimizer


@pytest.mark.parametrize(
    ("model", "optimizer", "words"),
    [
        (nn.LazyLinear(3), torch.optim.SGD, "run one batch through the model"),
        (
            nn.Linear(2, 2).requires_grad_(False),
            lambda params: torch.optim.SGD(params, lr=0.1),
            "nothing can be trained",
        ),
        (nn.Linear(2, 2), lambda params: 3, "give a function such as"),
        (nn.Linear(2, 2), "adam", "give a function such as"),
    ],
)
def test_what_cannot_be_trained_is_refused(model: nn.Module, optimizer: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _program(model, optimizer).build_optimizer()


def test_sparse_gradients_are_refused() -> None:
    refuse_sparse(torch.zeros(3))
    with pytest.raises(ConfigError, match="sparse gradients"):
        refuse_sparse(torch.zeros(3).to_sparse())


@pytest.fixture
def parameters() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.tensor([3.0, -4.0])), nn.Parameter(torch.tensor([0.5]))]
    made[0].grad, made[1].grad = torch.tensor([3.0, -4.0]), torch.tensor([12.0])
    return made


def test_clipping_by_norm_is_over_all_parameters(parameters: list[nn.Parameter]) -> None:
    clip_gradients(Clip(norm=1.3), parameters)
    found = torch.cat([p.grad for p in parameters if p.grad is not None])
    torch.testing.assert_close(found, torch.tensor([0.3, -0.4, 1.2]))


def test_clipping_by_value_comes_before_clipping_by_norm(parameters: list[nn.Parameter]) -> None:
    clip_gradients(Clip(norm=0.1, value=1.0), parameters)
    found = torch.cat([p.grad for p in parameters if p.grad is not None])
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0, 1.0]) * 0.1 / 3**0.5, rtol=1e-4, atol=1e-7)


def test_weights_are_kept_in_their_range(parameters: list[nn.Parameter]) -> None:
    clip_weights(Clip(weights=(-1.0, 2.0)), parameters)
    assert [p.tolist() for p in parameters] == [[2.0, -1.0], [0.5]]


# ---- running statistics


def _averaged(model: nn.Module, batches: list[Tensor]) -> None:
    """A step over `batches` on one worker."""
    buffers = RunningBuffers(model)
    buffers.begin()
    samples = sum(len(batch) for batch in batches)
    for batch in batches:
        buffers.before_pass()
        model(batch)
        buffers.after_pass(len(batch) / samples)
    change = torch.empty(buffers.numel, dtype=torch.float64)
    buffers.changes(change)
    buffers.commit(change)


def test_running_statistics_move_by_the_average_of_the_grains() -> None:
    values = torch.randn(10, 3)
    batches = [values[:6], values[6:]]
    model = nn.BatchNorm1d(3)
    _averaged(model, batches)
    mean = 0.6 * 0.1 * batches[0].mean(dim=0) + 0.4 * 0.1 * batches[1].mean(dim=0)
    torch.testing.assert_close(model.running_mean, mean)
    variance = 0.9 + 0.6 * 0.1 * batches[0].var(dim=0) + 0.4 * 0.1 * batches[1].var(dim=0)
    torch.testing.assert_close(model.running_var, variance)
    assert model.num_batches_tracked == 1  # once a step, not once a grain


def test_a_discarded_step_leaves_no_trace() -> None:
    model = nn.BatchNorm1d(3)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    buffers = RunningBuffers(model)
    buffers.begin()
    buffers.before_pass()
    model(torch.full((4, 3), torch.nan))
    buffers.after_pass(1.0)
    buffers.rollback()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_a_buffer_that_is_replaced_in_forward_is_refused() -> None:
    class Replacing(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + 1
            return x

    with pytest.raises(ConfigError, match="replaces its buffer 'seen' in forward"):
        _averaged(Replacing(), [torch.zeros(1)])
