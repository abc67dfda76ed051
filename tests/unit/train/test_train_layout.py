"""Images by pixel where a model can take them so, and every gradient in the order of its parameter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shoal.strategies.memory import arrange, is_dense, view_like
from shoal.strategies.objective import make_objective
from shoal.train.layout import choose_layout

pytestmark = pytest.mark.unit


class Net(nn.Module):
    """A convolution and a linear layer; `look` decides whether the model looks at its memory in between."""

    def __init__(self, look: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 16, 5)
        self.look = look

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.convolution(x))
        return self.head(x.view(len(x), -1) if self.look else x.flatten(1))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(6, 3, 4, 4), torch.randint(0, 5, (6,))


@pytest.mark.parametrize(("look", "expected"), [(False, "channels_last"), (True, "as_given")])
def test_a_model_that_looks_at_its_memory_is_left_alone(look: bool, expected: str) -> None:
    model, samples = Net(look), batch()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.default_generator.get_state()
    assert choose_layout("auto", model, make_objective(nn.CrossEntropyLoss()), samples) == expected
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.is_contiguous() and parameter.grad is None for parameter in model.parameters())
    assert torch.equal(generator, torch.default_generator.get_state())


def test_without_convolutions_nothing_is_tried() -> None:
    def never(model: nn.Module, batch: object) -> Tensor:
        raise AssertionError("tried")

    assert choose_layout("auto", nn.Linear(3, 2), make_objective(never), batch()) == "as_given"


def test_what_the_user_said_or_arranged_stays() -> None:
    objective = make_objective(nn.CrossEntropyLoss())
    assert choose_layout("as_given", Net(False), objective, batch()) == "as_given"
    arranged = Net(False).to(memory_format=torch.channels_last)
    assert choose_layout("auto", arranged, objective, batch()) == "as_given"
    assert not arranged.convolution.weight.is_contiguous()


def test_only_images_are_arranged() -> None:
    images, targets = batch()
    arranged = arrange({"x": images, "rest": [targets, "name"]}, "channels_last")
    assert arranged["x"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(arranged["x"], images)
    assert arranged["rest"][0] is targets


def test_a_view_of_a_bucket_has_the_order_of_its_parameter() -> None:
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    flat = torch.arange(200.0)[7 : 7 + weight.numel()]
    view = view_like(flat, weight)
    assert view.stride() == weight.stride()
    assert is_dense(view)
    view.copy_(weight)
    assert torch.equal(view, weight)
    assert torch.equal(flat, weight.permute(0, 2, 3, 1).flatten())
    assert not is_dense(torch.randn(4, 6)[:, ::2])
