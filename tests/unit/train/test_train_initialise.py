"""Initial parameters by name are a function of the seed alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.core.errors import ConfigError
from shoal.train.initialise import FILLERS, initialise, known

pytestmark = pytest.mark.unit


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def _weights(init: str, seed: int, start: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(start)
    model = _model()
    initialise(model, init, seed)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("init", [name for name in known() if name != "keep"])
def test_weights_depend_on_the_seed_and_on_nothing_before(init: str) -> None:
    first, second = _weights(init, 1, start=0), _weights(init, 1, start=99)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    other = _weights(init, 2)
    # where nothing is drawn for matrices, biases still are
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_keep_leaves_the_weights_of_the_script() -> None:
    torch.manual_seed(5)
    expected = [parameter.detach().clone() for parameter in _model().parameters()]
    assert all(torch.equal(a, b) for a, b in zip(_weights("keep", 1, start=5), expected, strict=True))


def test_fillers_fill_matrices_and_leave_vectors() -> None:
    weight, bias, scale, shift, *_ = _weights("zeros", 1)
    assert not weight.any()
    assert bias.any()
    assert (scale == 1).all()
    assert not shift.any()


def test_frozen_parameters_are_not_filled() -> None:
    model = nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    initialise(model, "zeros", 1)
    assert model.weight.any()


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'xavier_unifrom'.*did you mean 'xavier_uniform'"):
        initialise(_model(), "xavier_unifrom", 0)
    assert "xavier_uniform" in FILLERS
