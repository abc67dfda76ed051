"""Parameters and buffers by name: once each, and nothing is loaded that does not fit."""

from __future__ import annotations

import pytest
import torch
from checkpoint_cases import same_bits
from torch import Tensor, nn

from shoal.checkpoint.model_state import dump_model, load_model
from shoal.core.errors import CheckpointError

pytestmark = pytest.mark.unit


class Tied(nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.register_buffer("nothing", None)


def test_parameters_and_persistent_buffers_are_there_once() -> None:
    model = Tied()
    tensors, aliases = dump_model(model)
    assert set(tensors) == {f"model.{name}" for name in set(model.state_dict()) - {"head.weight"}}
    assert aliases == {"model.head.weight": "model.embed.weight"}
    assert tensors["model.embed.weight"] is model.embed.weight


def test_loading_makes_the_same_bits_in_place() -> None:
    source, target = Tied(), Tied()
    source.norm(torch.randn(4, 3))  # moves its running statistics
    weight = target.embed.weight
    tensors = {name: tensor.detach().clone() for name, tensor in dump_model(source)[0].items()}
    load_model(target, {**tensors, "optimizer.embed.weight.momentum_buffer": torch.zeros(1)})
    assert target.embed.weight is weight
    assert target.head.weight is weight
    assert weight.requires_grad
    state = target.state_dict()
    assert all(same_bits(tensor, state[name]) for name, tensor in source.state_dict().items())


def test_a_shared_module_is_saved_once() -> None:
    layer = nn.Linear(2, 2)
    tensors, aliases = dump_model(nn.Sequential(layer, nn.ReLU(), layer))
    assert set(tensors) == {"model.0.weight", "model.0.bias"}
    assert aliases == {"model.2.weight": "model.0.weight", "model.2.bias": "model.0.bias"}


def test_what_does_not_fit_is_named_and_nothing_is_touched() -> None:
    source, target = nn.Linear(3, 2), nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 2).double())
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    tensors: dict[str, Tensor] = {f"model.0.{name}": tensor for name, tensor in source.named_parameters()}
    tensors["model.1.weight"] = torch.zeros(2, 2)
    with pytest.raises(CheckpointError) as caught:
        load_model(target, tensors)
    message = str(caught.value)
    assert "model.1.bias is missing" in message
    assert "model.0.bias is not in the program's model" in message
    assert "model.0.weight is (2, 3) float32 in the checkpoint and (2, 4) float32 in the program" in message
    assert "model.1.weight is (2, 2) float32 in the checkpoint and (2, 2) float64 in the program" in message
    assert all(same_bits(tensor, before[name]) for name, tensor in target.state_dict().items())


def test_ties_that_changed_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"model\.head\.weight is not in .* or is tied"):
        load_model(Tied(tied=True), dump_model(Tied(tied=False))[0])
    with pytest.raises(CheckpointError, match=r"model\.head\.weight is missing"):
        load_model(Tied(tied=False), dump_model(Tied(tied=True))[0])


def test_many_problems_are_cut_short() -> None:
    with pytest.raises(CheckpointError, match="and 12 more"):
        load_model(nn.Sequential(*[nn.Linear(1, 1) for _ in range(10)]), {})


def test_extra_state_is_refused_by_name() -> None:
    class Odd(nn.Module):
        def get_extra_state(self) -> object:
            return {1, 2}

        def set_extra_state(self, state: object) -> None:
            raise NotImplementedError

    with pytest.raises(CheckpointError, match=r"Odd \(model\.1\) keeps extra state"):
        dump_model(nn.Sequential(nn.ReLU(), Odd()))
