"""How grains are sized and grouped into passes, and when a model says that they must run one by one."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from shoal.core.grains import cut
from shoal.strategies.objective import make_objective
from shoal.train.cutting import choose, plan_passes, why_separate

pytestmark = pytest.mark.unit


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


@given(st.integers(1, 5000), st.sampled_from([None, "it has dropout"]))
def test_the_grain_does_not_depend_on_workers_and_fits_the_batch(global_batch: int, separate: str | None) -> None:
    cutting = choose("auto", "auto", global_batch, separate)
    assert 1 <= cutting.grain <= global_batch
    assert cutting.merged == (separate is None)
    if separate is not None:
        assert cutting.grain <= 32
        assert cutting.why == separate


def test_what_the_user_states_holds() -> None:
    assert choose(25, "auto", 100, None).grain == 25
    assert choose(250, "auto", 100, None).grain == 100
    assert choose("auto", "merged", 100, "it has dropout").merged
    assert not choose("auto", "grain", 100, "passes=grain").merged


def _why(model: nn.Module, loss: Any = None) -> str | None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator)
    parts = [(x[:4], y[:4]), (x[4:], y[4:])]
    return why_separate(model, make_objective(loss or nn.MSELoss()), parts, (x, y))


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
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "draws random numbers"),
        (_Centred(), "not the sum of their losses"),
        (_Counting(), "changes its buffers"),
    ],
)
def test_a_model_that_looks_at_its_batch_or_draws_is_found_out(model: nn.Module, words: str) -> None:
    why = _why(model)
    assert why is not None
    assert re.search(words, why)


def test_grains_of_a_plain_model_may_share_a_pass() -> None:
    assert _why(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4))) is None


def test_a_loss_that_does_not_add_up_is_found_out() -> None:
    assert _why(nn.Linear(4, 4), lambda model, batch: (model(batch[0]) - batch[1]).square().mean().sqrt()) is not None


def test_trying_leaves_model_gradients_and_generator_as_they_were() -> None:
    model = _Counting()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    _why(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
