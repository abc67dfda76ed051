"""An optimizer that was saved and loaded goes on with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_cases import same_bits
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from shoal.checkpoint.format import read, write
from shoal.checkpoint.model_state import dump_model, load_model
from shoal.checkpoint.optimizer_state import dump_optimizer, load_optimizer
from shoal.core.cursor import Cursor
from shoal.core.errors import CheckpointError
from shoal.core.state import Piece, ShardedState

pytestmark = pytest.mark.unit

Factory = Callable[[Any], Optimizer]


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Linear(2, 2))
    for parameter in model[3].parameters():
        parameter.requires_grad_(False)
    return model


def names_of(model: nn.Module) -> dict[Parameter, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def train(model: nn.Module, optimizer: Optimizer, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()


def through_disk(tmp_path: Path, model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], Any]:
    tensors, values = dump_optimizer(optimizer, names_of(model))
    pieces = {name: Piece.whole(tensor) for name, tensor in {**dump_model(model)[0], **tensors}.items()}
    state = read(
        write(tmp_path, "step-00000003", [ShardedState(pieces, {"optimizer": values})], Cursor(step=3), {})
    ).state
    return {name: piece.tensor for name, piece in state.pieces.items()}, state.values["optimizer"]


def groups(model: nn.Module) -> list[dict[str, Any]]:
    first, *rest = list(model.parameters())
    return [{"params": [first], "lr": 0.01, "weight_decay": 0.1, "label": "first"}, {"params": rest}]


float_of_numpy: Any = np.float32(0.1)  # no float, but many take their rates from logspace

FACTORIES: dict[str, Factory] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.1),
    "adam with a tensor as lr": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), foreach=False),
    "adam fused": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, fused=True),
    "adamw amsgrad": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True),
    "nadam": lambda model: torch.optim.NAdam(model.parameters(), lr=0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
    "asgd": lambda model: torch.optim.ASGD(model.parameters(), lr=0.1),
    "rprop": lambda model: torch.optim.Rprop(model.parameters(), lr=0.1),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.1),
    "groups": lambda model: torch.optim.AdamW(groups(model), lr=0.1, betas=(0.8, 0.99)),
    "a rate of numpy": lambda model: torch.optim.SGD(model.parameters(), lr=float_of_numpy, momentum=0.9),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("steps", [0, 3])
def test_training_goes_on_with_the_same_bits(tmp_path: Path, name: str, steps: int) -> None:
    model = model_of(1)
    optimizer = FACTORIES[name](model)
    train(model, optimizer, 0, steps)
    tensors, values = through_disk(tmp_path, model, optimizer)
    other = model_of(2)
    restored = FACTORIES[name](other)
    train(other, restored, 100, 2)  # what was there before must not shine through
    load_model(other, tensors)
    load_optimizer(restored, names_of(other), tensors, values)
    assert_same_state(model, optimizer, other, restored)
    train(model, optimizer, steps, 3)
    train(other, restored, steps, 3)
    assert_same_state(model, optimizer, other, restored)
    state = other.state_dict()
    assert all(same_bits(tensor, state[key]) for key, tensor in model.state_dict().items())


def assert_same_state(model: nn.Module, a: Optimizer, other: nn.Module, b: Optimizer) -> None:
    state_a = {names_of(model)[p]: entries for p, entries in a.state.items() if entries}  # type: ignore[index]
    state_b = {names_of(other)[p]: entries for p, entries in b.state.items() if entries}  # type: ignore[index]
    assert state_a.keys() == state_b.keys()
    for name, entries in state_a.items():
        assert entries.keys() == state_b[name].keys()
        for key, value in entries.items():
            assert_same(value, state_b[name][key])
    for group_a, group_b in zip(a.param_groups, b.param_groups, strict=True):
        assert group_a.keys() == group_b.keys()
        for key in group_a.keys() - {"params"}:
            assert_same(group_a[key], group_b[key])


def assert_same(a: object, b: object) -> None:
    if isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        assert same_bits(a, b)
    else:
        assert a == b
        assert isinstance(b, tuple) == isinstance(a, tuple)


def test_tensors_go_by_the_names_of_their_parameters() -> None:
    model = model_of(1)
    optimizer = FACTORIES["momentum"](model)
    train(model, optimizer, 0, 1)
    tensors, values = dump_optimizer(optimizer, names_of(model))
    learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert set(tensors) == {f"optimizer.{name}.momentum_buffer" for name in learned}
    assert values["kind"] == "SGD"
    assert values["groups"][0]["params"] == [name for name, _ in model.named_parameters()]


def test_what_is_loaded_is_a_copy_in_the_memory_order_of_its_parameter() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    tensors, values = dump_optimizer(optimizer, names_of(model))
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    load_optimizer(optimizer, names_of(model), tensors, values)
    buffer = optimizer.state[model.weight]["momentum_buffer"]
    assert buffer.stride() == model.weight.stride()
    buffer.add_(1)
    assert not torch.equal(buffer, tensors["optimizer.weight.momentum_buffer"])


@pytest.mark.parametrize(
    ("factory", "complaint"),
    [
        (FACTORIES["adam"], "it is SGD in the checkpoint and Adam in the program"),
        (
            lambda model: torch.optim.SGD(groups(model), lr=0.1),
            "1 parameter groups in the checkpoint and 2 in",
        ),
        (
            lambda model: torch.optim.SGD(model[0].parameters(), lr=0.1),
            r"2\.weight is in group 0 only in the checkpoint",
        ),
    ],
)
def test_another_optimizer_is_refused_and_left_as_it_was(factory: Factory, complaint: str) -> None:
    model = model_of(1)
    saved = FACTORIES["momentum"](model)
    train(model, saved, 0, 2)
    tensors, values = dump_optimizer(saved, names_of(model))
    optimizer = factory(model)
    train(model, optimizer, 0, 1)
    before = repr(optimizer.state_dict())
    with pytest.raises(CheckpointError, match=complaint):
        load_optimizer(optimizer, names_of(model), tensors, values)
    assert repr(optimizer.state_dict()) == before


def test_a_tensor_of_no_parameter_is_refused() -> None:
    model = model_of(1)
    optimizer = FACTORIES["momentum"](model)
    tensors, values = dump_optimizer(optimizer, names_of(model))
    tensors["optimizer.gone.weight.momentum_buffer"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=r"optimizer\.gone\.weight\.momentum_buffer belongs to no parameter"):
        load_optimizer(optimizer, names_of(model), tensors, values)


def test_lbfgs_is_refused_with_the_entry_named() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return float(loss.detach())

    for _ in range(3):
        optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch has no type for this one
    with pytest.raises(CheckpointError, match=r"LBFGS keeps '.*' for weight, which holds a Tensor"):
        dump_optimizer(optimizer, names_of(model))


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (("hook", len), "keeps 'hook' for 0.weight, which holds a builtin_function_or_method"),
        (("a.b", 1), "keeps 'a.b' for 0.weight: a checkpoint needs a plain word"),
        ((3, 1), "keeps 3 for 0.weight"),
        (("table", {1: 2}), "keeps 'table' for 0.weight, which holds a dict"),
    ],
)
def test_what_cannot_be_saved_is_named(entry: tuple[Any, Any], complaint: str) -> None:
    model = model_of(1)
    optimizer = FACTORIES["sgd"](model)
    optimizer.state[next(model.parameters())] = {entry[0]: entry[1]}
    with pytest.raises(CheckpointError, match=complaint):
        dump_optimizer(optimizer, names_of(model))


def test_options_and_parameters_that_cannot_be_saved_are_named() -> None:
    model = model_of(1)
    optimizer = FACTORIES["sgd"](model)
    optimizer.param_groups[0]["hook"] = print
    with pytest.raises(CheckpointError, match="SGD has the option 'hook' in group 0, which holds a"):
        dump_optimizer(optimizer, names_of(model))
    stranger = torch.optim.SGD([Parameter(torch.zeros(7))], lr=0.1)
    with pytest.raises(CheckpointError, match=r"shape \(7,\), which is none of the model's parameters"):
        dump_optimizer(stranger, names_of(model))


def test_nested_options_come_back_as_they_were() -> None:
    model = model_of(1)
    optimizer = FACTORIES["sgd"](model)
    nested = {"a": (1, (2.5, None)), "b": [True, "x", {"c": ()}]}
    optimizer.param_groups[0]["nested"] = nested
    tensors, values = dump_optimizer(optimizer, names_of(model))
    other = FACTORIES["sgd"](model)
    load_optimizer(other, names_of(model), tensors, values)
    assert other.param_groups[0]["nested"] == nested
