"""How grains are sized and grouped into passes, and when a model says that they must run one by one."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from shoal.core.grains import cut
from shoal.strategies.drawing import DrawRules
from shoal.strategies.objective import make_objective
from shoal.train.cutting import Cutting, Look, choose, look_at, plan_passes
from shoal.train.draws import Few

pytestmark = pytest.mark.unit
PLAIN = Look(None, DrawRules({}))


@given(st.integers(0, 200), st.integers(1, 20), st.booleans(), st.integers(1, 30))
def test_passes_hold_every_grain_once_in_order(samples: int, size: int, merged: bool, accumulate: int) -> None:
    grains = cut(0, samples, size)
    passes = plan_passes(grains, merged, accumulate)
    assert [grain for one in passes for grain in one] == list(grains)
    assert all(one for one in passes)
    assert len(passes) == (min(accumulate, len(grains)) if merged else len(grains))


@given(st.integers(1, 200), st.integers(1, 30))
def test_merged_passes_are_of_about_equal_size(count: int, accumulate: int) -> None:
    sizes = [len(one) for one in plan_passes(cut(0, count, 1), True, accumulate)]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 5000), st.sampled_from([None, "it looks at its batch"]))
def test_the_grain_does_not_depend_on_workers_and_fits_the_batch(global_batch: int, separate: str | None) -> None:
    cutting = choose("auto", "auto", global_batch, Look(separate, None))
    assert 1 <= cutting.grain <= global_batch
    assert cutting.merged == (separate is None)
    if separate is not None:
        assert cutting.grain <= 32
        assert cutting.why == separate


NORMED = Look("it looks at its batch", None, normed=True)
DRAWING = Look("it draws", None)


@pytest.mark.parametrize(
    ("global_batch", "look", "announced", "sizes"),
    [
        (64, NORMED, 4, [16] * 4),
        (128, NORMED, 4, [32] * 4),
        (128, NORMED, 2, [32] * 4),
        (128, NORMED, 8, [16] * 8),
        (128, NORMED, 100, [16] * 8),
        (53, NORMED, 6, [18, 18, 17]),
        (49, NORMED, 6, [25, 24]),
        (20, NORMED, 4, [20]),
        (8, DRAWING, 4, [2] * 4),
        (8, DRAWING, 20, [1] * 8),
        (64, DRAWING, 4, [16] * 4),
        (256, DRAWING, 4, [32] * 8),
        (8, PLAIN, 4, [1] * 8),
        (128, PLAIN, 4, [2] * 64),
    ],
)
def test_as_many_workers_as_were_announced_have_work(
    global_batch: int, look: Look, announced: int, sizes: list[int]
) -> None:
    size = choose("auto", "auto", global_batch, look, announced).grain
    assert [grain.samples for grain in cut(0, global_batch, size)] == sizes


@given(st.integers(1, 3000), st.integers(1, 40))
def test_batch_normalisation_sees_enough_in_full_batches(global_batch: int, announced: int) -> None:
    grains = cut(0, global_batch, choose("auto", "auto", global_batch, NORMED, announced).grain)
    assert min(grain.samples for grain in grains) >= min(16, global_batch)
    assert max(grain.samples for grain in grains) <= 32


def test_what_the_user_states_holds() -> None:
    assert choose(25, "auto", 100, PLAIN).grain == 25
    assert choose(250, "auto", 100, PLAIN).grain == 100
    assert choose("auto", "merged", 100, Look("it looks at its batch", None)).merged
    assert not choose("auto", "grain", 100, Look("passes=grain", None)).merged


def test_what_was_chosen_travels_as_plain_values() -> None:
    for draws in (None, DrawRules({("a", 3): 1})):
        cutting = choose("auto", "auto", 100, Look(None, draws))
        assert Cutting.from_json(json.loads(json.dumps(cutting.to_json()))) == cutting
        assert cutting.settings["draws"] == ("grain" if draws is None else "sample")


def _why(model: nn.Module, loss: Any = None, combined: bool = False) -> str | None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator)
    both, *parts = (Few(np.arange(a, b), (x[a:b], y[a:b])) for a, b in ((0, 8), (0, 3), (3, 8)))
    return look_at(model, make_objective(loss or nn.MSELoss()), parts, both, combined).separate


class _Centred(nn.Module):
    """Looks at its batch without being a module that is known for it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        centred: Tensor = self.inner(x - x.mean(dim=0))
        return centred


class _Counting(nn.Linear):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), r"1 \(BatchNorm1d\) looks at its batch"),
        (nn.Sequential(nn.Linear(4, 4), nn.RReLU()), r"1 \(RReLU\) draws random numbers of its own"),
        (_Centred(), "not the sum of their losses"),
        (_Counting(), "changes its buffers"),
    ],
)
def test_a_model_that_looks_at_its_batch_or_draws_is_found_out(model: nn.Module, words: str) -> None:
    why = _why(model)
    assert why is not None
    assert re.search(words, why)


def test_grains_of_a_plain_model_may_share_a_pass() -> None:
    assert _why(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 4))) is None


class _Shared(nn.Module):
    """The gradients of its two biases lie in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.a, self.b = nn.Linear(4, 4), nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = self.inner(x) + (self.a[None] + self.b[None])
        return shifted


def test_gradients_that_share_memory_are_each_compared() -> None:
    assert _why(_Shared()) is None


def test_a_loss_that_does_not_add_up_is_found_out() -> None:
    assert _why(nn.Linear(4, 4), lambda model, batch: (model(batch[0]) - batch[1]).square().mean().sqrt()) is not None


def test_trying_leaves_model_gradients_and_generator_as_they_were() -> None:
    model = nn.Sequential(_Counting(), nn.Dropout(0.5).eval())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    _why(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in model.modules()] == [True, True, False]


def test_batch_normalisation_over_all_is_no_reason_and_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert "looks at its batch" in (_why(model) or "")
    assert _why(model, combined=True) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_beside_batch_normalisation_over_all_dropout_is_no_reason() -> None:
    assert _why(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), combined=True) is None


def test_beside_batch_normalisation_over_all_something_else_may_be_a_reason() -> None:
    norm = nn.BatchNorm1d(4)
    assert "sum of their losses" in (_why(nn.Sequential(norm, nn.Linear(4, 4), _Centred()), combined=True) or "")
    assert "random numbers" in (_why(nn.Sequential(norm, nn.Linear(4, 4), nn.RReLU()), combined=True) or "")
