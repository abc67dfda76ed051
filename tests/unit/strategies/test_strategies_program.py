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


# ---- an optimizer that would not train the model


def _two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda model: torch.optim.SGD(_two().parameters(), lr=0.1), r"holds 0 of .* 4 .*, and 4 that are not the"),
        (lambda model: torch.optim.SGD(model[1].parameters(), lr=0.1), r"holds 2 of .* 4 .*: 0\.weight, 0\.bias would"),
        (
            lambda model: torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(7))], lr=0.1),
            r"1 parameters that are not the model's, of shape \[7\]",
        ),
        (lambda model: torch.optim.LBFGS(model.parameters()), "LBFGS evaluates the model several times"),
    ],
    ids=["another model's", "a part", "more than the model's", "several evaluations"],
)
@pytest.mark.parametrize("made", [True, False])
def test_an_optimizer_that_does_not_train_the_model_is_refused(optimizer: Any, words: str, made: bool) -> None:
    model = _two()
    with pytest.raises(ConfigError, match=words):
        _program(model, optimizer(model) if made else lambda params: optimizer(model)).build_optimizer()


def test_whoever_trains_a_part_freezes_the_rest() -> None:
    model = _two()
    with pytest.raises(ConfigError, match=r"requires_grad_\(False\)"):
        _program(model, torch.optim.SGD(model[1].parameters(), lr=0.1))
    model[0].requires_grad_(False)
    _program(model, torch.optim.SGD(model[1].parameters(), lr=0.1))
    _program(model, torch.optim.SGD(model.parameters(), lr=0.1))  # frozen ones may be held


# ---- a model that would train otherwise than it says


def _like_keras() -> nn.Module:
    """Its layers are modules of torch; whether they train is an argument of the call, which nobody gives."""

    class Layer(nn.Module):
        def forward(self, x: Tensor, training: bool = False) -> Tensor:
            return nn.functional.dropout(x, 0.5, training)

    class Dropout(Layer):
        pass

    Layer.__module__, Dropout.__module__ = "keras.src.layers.layer", "keras.src.layers.regularization.dropout"
    return nn.Sequential(nn.Linear(2, 2), Dropout())


class Deaf(nn.Module):
    """A wrapper that switches itself and not what it holds."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def train(self, mode: bool = True) -> Deaf:
        self.training = mode
        return self


class Hiding(nn.Module):
    def __init__(self, hidden: nn.Module) -> None:
        super().__init__()
        self.body, self.others = nn.Linear(2, 2), [hidden]


class Still(nn.Linear):
    def train(self, mode: bool = True) -> Still:
        return self


class Counting(nn.Linear):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(2, 2)
        self.seed = nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=False)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_like_keras(), r"1 \(Dropout\) is a layer of Keras.*write the model with torch\.nn"),
        (Deaf(nn.Linear(2, 2), nn.BatchNorm1d(2)), r"eval\(\) leaves layers\.1 \(BatchNorm1d\) in training mode"),
        (nn.Sequential(Deaf(nn.LSTM(2, 2, 2, dropout=0.1))), r"leaves 0\.layers\.0 \(LSTM\) in training mode"),
        (Hiding(nn.Sequential(nn.Dropout())), r"leaves others\[0\]\.0 \(Dropout\).*nn\.ModuleList"),
        (Still(2, 2), r"eval\(\) leaves the model \(Still\) in training mode"),
        (Counting(torch.int64), r"parameters seed \(int64\) are not floating point"),
        (Counting(torch.complex64), r"parameters seed \(complex64\) are not floating point"),
    ],
    ids=["keras", "batch normalisation", "lstm", "hidden", "itself", "whole numbers", "complex"],
)
def test_a_model_that_would_train_otherwise_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _program(model)


def test_a_model_that_stays_in_evaluation_mode_is_refused() -> None:
    model = Still(2, 2)
    model.training = False
    with pytest.raises(ConfigError, match=r"model\.train\(\) leaves the model in evaluation mode"):
        _program(model)


class FrozenStatistics(nn.Sequential):
    def train(self, mode: bool = True) -> FrozenStatistics:
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.parametrize(
    "model",
    [
        FrozenStatistics(nn.Linear(2, 2), nn.BatchNorm1d(2)),
        Hiding(nn.Dropout().eval()),  # a teacher, say
        Deaf(nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval(),
    ],
    ids=["frozen statistics", "hidden in evaluation mode", "nothing to switch", "evaluating"],
)
def test_modes_that_make_sense_are_kept(model: nn.Module) -> None:
    before = [module.training for module in model.modules()]
    _program(model)
    assert [module.training for module in model.modules()] == before


def test_keras_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    layers = keras.layers
    model = keras.Sequential([layers.Input((2,)), layers.Dense(2), layers.BatchNormalization(), layers.Dropout(0.5)])
    with pytest.raises(ConfigError, match="a layer of Keras"):
        _program(model)


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


@pytest.mark.parametrize("clip", [Clip(norm=0.3), Clip(value=0.1), Clip(norm=0.2, value=0.1)], ids=str)
def test_a_sparse_gradient_is_clipped_like_a_dense_one(clip: Clip) -> None:
    found = {}
    for sparse in (True, False):
        torch.manual_seed(0)
        table, layer = nn.Embedding(9, 3, sparse=sparse), nn.Linear(3, 1)
        layer(table(torch.tensor([1, 4, 4, 7]))).square().sum().backward()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse == sparse
        clip_gradients(clip, [table.weight, layer.weight, layer.bias])
        found[sparse] = [p.grad.to_dense() for p in (table.weight, layer.weight, layer.bias) if p.grad is not None]
    torch.testing.assert_close(found[True], found[False])


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
